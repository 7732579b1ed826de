"""``turngate requests``, ``show`` and ``decide``: the operators' inbox from a terminal or a script."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, assert_never, cast, get_args

import typer
from pydantic import JsonValue

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.follow.request import RISK_STYLE, answer_json, show_request
from turngate.cli.options import AsJson, DataDir, Url, seconds_of
from turngate.client import SyncTurngateClient
from turngate.client.requests import Where
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.grants import (
    MAX_GRANT_SECONDS,
    MAX_GRANT_USES,
    GrantScope,
    WantedGrant,
    exact_pattern,
    with_left_out,
)
from turngate.domain.policy.limits import LimitKind, ValueLimit, parse_limit, parse_total
from turngate.domain.policy.policy import Risk
from turngate.domain.requests import RequestKind, Resolution, Verb
from turngate.domain.runs.groups import Grouping, groups_of
from turngate.domain.runs.inbox import MAX_STEP, InboxStatus
from turngate.domain.text.folds import cut_line
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.defaults import in_one_line
from turngate.policies.explain import in_words
from turngate.text.folded_call import fold_call, preview_line
from turngate.text.plain_text import Piece, plain_line
from turngate.text.run_words import differs_words, group_words, revealed_lines, start_words
from turngate.text_files import NotTextError, read_text, why_unreadable
from turngate.wire.decisions import DecisionResult
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail, RequestItem

MOST_ROWS: Final = 50
MOST_GROUPED: Final = 100
CALL_CHARS: Final = 300
"""Of the call that was decided, on its line."""
Whole = Annotated[bool, typer.Option("--whole", help="Print all of a long call; nothing of it is folded.")]
VerbChoice = Literal[Verb, "withdraw"]
"""What to decide, or to take one's approval back."""
COLUMNS: Final = ("REQUEST", "STATUS", "RISK", "AGENT", "TOOL", "WHAT IT DOES", "DOUBTS")


def requests(
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Only requests that contain all these words: in the tool, the arguments, the task, an agent or a person.",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        InboxStatus | None,
        typer.Option(
            help="Only these. `decided`: all but the pending ones, however they ended.", show_default="pending"
        ),
    ] = None,
    kind: Annotated[RequestKind | None, typer.Option(help="Only this kind.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent's.", show_default=False)] = None,
    tool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only calls of this tool.", show_default=False)
    ] = None,
    risk: Annotated[Risk | None, typer.Option(help="Only of this risk.", show_default=False)] = None,
    rule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only requests of this rule.", show_default=False)
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only this run's.", show_default=False)
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, max=MAX_STEP, help="Only of this step of its run.", show_default=False)
    ] = None,
    claimed: Annotated[
        str | None,
        typer.Option(
            metavar="PERSON",
            help="Only those that this person has claimed: a name, `me`, or `nobody`.",
            show_default=False,
        ),
    ] = None,
    parked: Annotated[
        bool | None,
        typer.Option(
            "--parked/--not-parked",
            help="Only those whose time ran out and that still wait, or no such.",
            show_default=False,
        ),
    ] = None,
    by_age: Annotated[bool, typer.Option("--by-age", help="The oldest first, not the most urgent.")] = False,
    group: Annotated[
        Grouping | None,
        typer.Option(help="Put them in groups: by run, by step, or calls that are alike.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Pending, decided and ended requests: `--status all`.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List the requests that wait for a decision, the most urgent first.

    A near deadline, a high risk and a long wait each move a request up. A sub-agent's request shows the agents above it. The
    options are the inbox's filters; a request has to match all of them.
    """
    conditions = {
        "status": "all" if every and status is None else status,
        "search": search,
        "kind": kind,
        "agent": agent,
        "tool": tool,
        "risk": risk,
        "rule": rule,
        "run_id": run_id,
        "step": step,
        "claimed": claimed,
        "parked": parked,
    }
    where = cast("Where", {name: value for name, value in conditions.items() if value not in {None, ""}})
    where["order"] = "age" if by_age else "urgency"
    link = find_api(data_dir, url)
    with link.client() as client:
        page = client.list_requests(limit=MOST_ROWS if group is None else MOST_GROUPED, **where)
    if group is not None:
        _print_groups(page.items, group, as_json=as_json)
    elif as_json:
        terminal.raw(json.dumps([item.model_dump(mode="json") for item in page.items]))
    else:
        terminal.table(COLUMNS, [_row(item) for item in page.items])
    if as_json:
        return
    if page.next_cursor:
        terminal.note(f"the first {len(page.items)}; all of them: {link.pages}/")
    elif not page.items:
        terminal.note("no request matches" if len(where) > 1 else "nothing waits for a decision")


def _print_groups(items: Sequence[RequestItem], by: Grouping, *, as_json: bool) -> None:
    groups = groups_of(items, by)
    if as_json:
        members = [
            {
                "group": group_words(each, by),
                "differs": dict(each.differs),
                "requests": [item.model_dump(mode="json") for item in each.items],
            }
            for each in groups
        ]
        terminal.raw(json.dumps(members))
        return
    for each in groups:
        terminal.line((group_words(each, by), "bold"))
        rows = [(*_row(item), differs_words(each, item)) for item in each.items]
        terminal.table(
            (*COLUMNS, "DIFFERENCE") if each.differs else COLUMNS, rows if each.differs else [row[:-1] for row in rows]
        )


def show(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")],
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Also print the secrets. The audit log says that you looked.")
    ] = False,
    whole: Whole = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Print a request: the exact call, and what a decision needs.

    Below a pending request are the commands that decide it. Secrets are masked. `--reveal` prints them for a person who may
    decide the request: use a token of your own.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        request = client.get_request(request_id)
        secrets = client.reveal_secrets(request_id).secrets if reveal else []
    if as_json:
        revealed = {"secrets": [each.model_dump(mode="json") for each in secrets]} if reveal else {}
        terminal.raw(json.dumps({**request.model_dump(mode="json"), **revealed}))
        return
    _print_request(request, whole=whole)
    for label, value in revealed_lines(secrets):
        terminal.line((f"  {label}  ", "dim"), value)
    if reveal and not secrets:
        terminal.note("this request has no secrets")
    for command in _decisions(request, link.options):
        terminal.note(f"  {plain_line(command)}")


def _decisions(request: RequestDetail, options: str) -> list[str]:
    """Return the commands that decide a pending request, with ``…`` where the user fills in a text."""
    if not request.allowed_verbs:
        return []
    reject = f'turngate decide{options} {request.id} reject --message "…"'
    match request.kind:
        case "approval":
            return [f"turngate decide{options} {request.id} approve", reject]
        case "question":
            answer = answer_json(request, "…")
            answer = "JSON" if answer == "…" else shlex.quote(answer)
            return [f"turngate decide{options} {request.id} respond --args {answer}", reject]
        case "outcome":
            return [
                f"turngate decide{options} {request.id} respond --outcome {outcome}" for outcome in get_args(Resolution)
            ]
        case _:
            assert_never(request.kind)


def _print_request(request: RequestDetail, *, whole: bool, runs: bool = False) -> None:
    """Print a request. ``runs``: its call will run, so nothing stays folded that has to be seen before."""
    call = fold_call(request)
    is_whole = whole or not call.is_folded or (runs and call.must_unfold)
    show_request(request, whole=is_whole)
    if not is_whole:
        terminal.note("some of the call is folded; --whole prints all of it")


def decide(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")],
    verb: Annotated[VerbChoice, typer.Argument(metavar="DECISION", help="Your decision.")],
    args: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="Edited arguments, an answer, or the result of a call, as JSON: the text, a file, or stdin.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[str, typer.Option(help="A message to the agent, such as the reason for a rejection.")] = "",
    outcome: Annotated[
        Resolution | None,
        typer.Option(help="What happened, for a call that may or may not have run.", show_default=False),
    ] = None,
    grant: Annotated[
        GrantScope | None,
        typer.Option(help="Also approve calls like this from now on: in this run, by this agent, or by every agent."),
    ] = None,
    leave_open: Annotated[
        list[str] | None,
        typer.Option("--open", metavar="ARG", help="With --grant: allow any value of this argument; repeat for more."),
    ] = None,
    in_range: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="ARG=FROM..TO", help="With --grant: allow numbers, dates or times of this range."
        ),
    ] = None,
    one_of: Annotated[
        list[str] | None,
        typer.Option("--one-of", metavar="ARG=A,B", help="With --grant: allow these values of the argument."),
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option("--prefix", metavar="ARG=TEXT", help="With --grant: allow texts that begin like this."),
    ] = None,
    total: Annotated[
        str, typer.Option(metavar="ARG=MOST/day", help="With --grant: up to this total per UTC hour, day or week.")
    ] = "",
    uses: Annotated[int, typer.Option(help="With --grant: how many calls it approves.")] = 1,
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="With --grant: how long it is valid, such as 1h.")
    ] = "1h",
    answer_waiting: Annotated[
        bool,
        typer.Option(
            "--answer-waiting",
            help="With --grant: also approve the requests that wait with exactly these arguments; of others, print a link.",
        ),
    ] = False,
    confirm: Annotated[
        str, typer.Option(metavar="TOOL", help="The tool's name, needed after many approvals within a minute.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="With --grant: save it without a question.")] = False,
    show_call: Annotated[
        bool, typer.Option("--show", help="Also print the request, as `turngate show` does. --whole does, too.")
    ] = False,
    whole: Whole = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Decide a request: approve, edit, reject, or answer it.

    Or withdraw your approval, while the approvals of others are still missing, or before the call starts.

    The command prints the result, with the call on one line. The decision names the call's digest: if the call changes
    meanwhile, nothing is decided. Read the request first with `turngate show`. With `--show` what you let run is printed whole,
    except for what the tool's preview shows of it.
    """
    content = None if args is None else _read_args(args)
    _check_waiting(grant, wanted=answer_waiting)
    link = find_api(data_dir, url)
    with link.client() as client:
        request = client.get_request(request_id)
        _check_content(request, verb, content, message, outcome)
        runs = verb in {"approve", "edit"} or outcome == "did_not_happen"
        shows = show_call or whole
        if grant is not None and not yes and not as_json:  # a person is about to be asked about calls like it
            _print_request(request, whole=whole, runs=runs)
            terminal.line("")
            shows = False
        if verb == "withdraw":
            _withdraw(client, request, as_json=as_json)
            return
        wanted = None
        if grant is not None:
            options = GrantOptions(
                scope=grant,
                leave_open=list(leave_open or ()),
                limits={"range": in_range, "one_of": one_of, "prefix": prefix},
                total=total,
                uses=uses,
                lasts=lasts,
                yes=yes,
            )
            wanted = wanted_grant(client, request, options, args=content if verb == "edit" else None)
        order = DecisionOrder(
            verb=verb,
            digest=request.digest,
            args=content,
            message=message,
            outcome=outcome,
            grant=wanted,
            answer_waiting=_answers_at_once(wanted, answer_waiting=answer_waiting),
            confirm=confirm,
        )
        answer = client.decide(request.id, order)
    if as_json:
        terminal.raw(json.dumps(answer.model_dump(mode="json")))
    else:
        _print_decided(request, answer, is_edited=verb == "edit")
        if shows:
            _print_request(request, whole=whole, runs=runs)
    _print_answered(answer, order, link.pages if answer_waiting else None, as_json=as_json)


def _withdraw(client: SyncTurngateClient, request: RequestDetail, *, as_json: bool) -> None:
    client.withdraw_approval(request.id)
    again = client.get_request(request.id).replaced_by
    if as_json:
        terminal.raw(json.dumps({"asked_again": again}))
        return
    more = "" if again is None else f"; {again} asks about the call again"
    terminal.line(("✓ ", "bold"), f"{request.id} no longer has your approval{more}")


def _print_decided(request: RequestDetail, answer: DecisionResult, *, is_edited: bool) -> None:
    """Print the result of a decision, and its call, on a line."""
    mark = "✗ " if answer.status == "rejected" else "✓ "
    call = f"{request.tool_name} {'with the arguments that you sent' if is_edited else request.input}"
    terminal.line((mark, "bold"), f"{request.id} is {_status_words(request, answer)}: ", plain_line(call, CALL_CHARS))
    if answer.starts_at is not None:
        terminal.line("  ", start_words(request.id, answer.starts_at))


def _status_words(request: RequestDetail, answer: DecisionResult) -> str:
    """Return the request's new status; of one that needs more approvals, how many."""
    missing = request.quorum - request.approvals - 1
    if answer.status != "pending" or missing < 1:
        return answer.status
    return f"still pending: {missing} more {'person' if missing == 1 else 'people'} must approve it"


def _check_content(
    request: RequestDetail, verb: VerbChoice, args: str | None, message: str, outcome: Resolution | None
) -> None:
    """Raise ConfigurationError, which names the option, if the decision lacks what it has to say."""
    from_file = "or --args @FILE, or --args - for stdin"
    if verb == "edit" and request.kind == "approval" and args is None:
        raise ConfigurationError(f"edit needs the new arguments: add --args '{{…}}', {from_file}")
    if verb != "respond":
        return
    match request.kind:
        case "question" if args is None:
            example = answer_json(request, "…")
            example = "JSON" if example == "…" else shlex.quote(example)
            raise ConfigurationError(f"respond needs the answer: add --args {example}, {from_file}")
        case "outcome" if outcome is None:
            raise ConfigurationError(f"respond needs what happened: add --outcome {', or '.join(get_args(Resolution))}")
        case "approval" if not message.strip():
            raise ConfigurationError('respond needs what the agent reads instead of a result: add --message "…"')


def _check_waiting(grant: GrantScope | None, *, wanted: bool) -> None:
    if wanted and grant is None:
        raise ConfigurationError("--answer-waiting goes with --grant: the grant says which requests it answers")


def _answers_at_once(grant: WantedGrant | None, *, answer_waiting: bool) -> bool:
    return answer_waiting and grant is not None and grant.pattern.is_exact


def _print_answered(answer: DecisionResult, order: DecisionOrder, url: str | None, *, as_json: bool) -> None:
    """Print what happened to the requests that waited, or where to review them. Exit code 1 if one wasn't approved.

    ``url``: of the pages; None: no request that waits is to be answered.
    """
    if url is not None and not order.answer_waiting:
        terminal.note(f"review the requests that the grant covers: {url}/requests/waiting?grant={answer.grant_id}")
    for each in answer.answered:
        outcome = "approved" if each.problem is None else str(each.problem.get("detail", "not decided"))
        if not as_json:
            terminal.line("  ", (each.request_id, "dim"), f"  {plain_line(outcome)}")
    if any(each.problem is not None for each in answer.answered):
        raise typer.Exit(EXIT_WENT_WRONG)


@dataclass(frozen=True, kw_only=True)
class GrantOptions:
    """The options of ``--grant``. ``limits``: ``ARGUMENT=…`` of each kind. ``yes``: the user has confirmed the grant."""

    scope: GrantScope
    leave_open: list[str]
    limits: Mapping[LimitKind, Sequence[str] | None]
    total: str
    uses: int
    lasts: str
    yes: bool


def wanted_grant(
    client: SyncTurngateClient, request: RequestDetail, options: GrantOptions, *, args: str | None
) -> WantedGrant:
    """Return the grant for calls like this one, after the user has seen its exact pattern and confirmed it.

    ``args``: the edited arguments, if the call is edited.

    Raises:
        InvalidInputError: no pattern can be made of the call.
        ConfigurationError: an option is out of bounds, or there is no terminal to ask the user.
        typer.Abort: the user declined; nothing was decided.
    """
    try:
        arguments = decode_arguments(request.input_for_readers if args is None else args)
    except ValueError as error:
        raise InvalidInputError(f"the arguments are not plain JSON: {error}", code="invalid_grant") from None
    edited = None if args is None else request.manifest.defaults_of_edit(args, request.input, request.defaults)
    arguments = with_left_out(arguments, request.defaults if edited is None else edited)
    within = _limits(arguments, options.limits)
    total = parse_total(options.total) if options.total else None
    pattern = exact_pattern(request.tool_name, arguments, open_arguments=options.leave_open, within=within, total=total)
    seconds = seconds_of(options.lasts, "--for")
    if not 1 <= seconds <= MAX_GRANT_SECONDS:
        raise ConfigurationError("--for: from 1s to 90d")
    if not 1 <= options.uses <= MAX_GRANT_USES:
        raise ConfigurationError(f"--uses: from 1 to {MAX_GRANT_USES:,}")
    wanted = WantedGrant(pattern=pattern, scope=options.scope, expires_after_seconds=seconds, max_uses=options.uses)
    whom = {
        "run": f"in run {request.run_id}",
        "agent": f"by agent {request.agent}, in any directory",
        "everyone": "by every agent, in any directory",
    }
    terminal.note(("grant: ", "bold yellow"), plain_line(in_words(pattern)))
    terminal.note(
        f"       {whom[options.scope]}, up to {options.uses} time(s), for {options.lasts}, without asking anyone"
    )
    terminal.note("       ", (plain_line(json.dumps(pattern.model_dump(mode="json"), ensure_ascii=False)), "dim"))
    if args is None:
        past = client.preview_grant(
            request.id, open_arguments=options.leave_open, within=pattern.within, total=pattern.total
        )
        covered = past.would_have_covered[options.scope]
        terminal.note(f"       it would have approved {covered} of the {past.looked_at} newest calls of this tool")
    if not options.yes:
        if not terminal.is_interactive():
            raise ConfigurationError("there is no terminal to confirm the grant: check it above, then add --yes")
        typer.confirm("Save it with this decision?", abort=True, err=True)
    return wanted


def _limits(arguments: JsonValue, limits: Mapping[LimitKind, Sequence[str] | None]) -> dict[str, ValueLimit]:
    """Return argument → its limit. Raises InvalidInputError for one that the call doesn't have, or can't have."""
    within: dict[str, ValueLimit] = {}
    for kind, texts in limits.items():
        for text in texts or ():
            name, _equals, limit = text.partition("=")
            if not isinstance(arguments, dict) or name not in arguments:
                raise InvalidInputError(f"the call has no argument {name!r} to limit", code="invalid_grant")
            within[name] = parse_limit(kind, arguments[name], limit)
    return within


def _read_args(argument: str) -> str:
    if argument == "-":
        return sys.stdin.read()
    if not argument.startswith("@"):
        return argument
    try:
        return read_text(Path(argument[1:]))
    except (OSError, NotTextError) as error:
        reason = why_unreadable(error)
        raise ConfigurationError(f"--args {argument}: the file cannot be read ({reason})") from None


def _row(item: RequestItem) -> tuple[Piece, ...]:
    left_out = plain_line(in_one_line(item.defaults))
    preview = preview_line(item, 120)
    warning, preview = (preview, "") if item.preview_warns else ("", preview)
    does = cut_line(plain_line(item.input), 120, more=item.input_more)
    if item.summary is not None:
        does = plain_line(item.summary, 120)
    return (
        item.id,
        item.status if item.not_run is None else f"{item.status}, did not run",
        (item.risk, RISK_STYLE.get(item.risk, "")),
        item.agents,
        item.tool_name,
        does + (f" ({left_out})" if left_out else "") + (f"\npreview: {preview}" if preview else ""),
        ("\n".join(filter(None, [warning, *(each.words for each in item.same_calls), item.doubts.words])), "yellow"),
    )
