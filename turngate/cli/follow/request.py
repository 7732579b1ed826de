"""A request in the terminal: printed as an operator must see it before deciding, and answered.

It is printed as the tool's preview, the exact call, then why it needs a decision. A key that was typed before the request was
on screen never counts.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from turngate.approvals_api.pages.result_text import depends_on, what_changed
from turngate.cli import terminal
from turngate.cli.follow.lines import AGENT_MARGIN
from turngate.client import SyncTurngateClient
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.requests import Resolution, Verb
from turngate.domain.text import json_text
from turngate.domain.text.diff import read_diff
from turngate.domain.text.hidden_text import escape_hidden
from turngate.domain.tools.results import Failure
from turngate.store.clock import from_text, now
from turngate.text.changes import change_lines, changes
from turngate.text.folded_call import FoldedCall, fold_call
from turngate.text.instants import second
from turngate.text.plain_text import plain, plain_line
from turngate.text.presentation import diff_lines, presentation_lines
from turngate.text.run_words import (
    consequence_lines,
    decision_lines,
    judgement_words,
    lead_lines,
    lost_start_lines,
    not_by,
    not_run_words,
    origin_lines,
    part_words,
    precedent_lines,
    sibling_lines,
    start_words,
    unseen_words,
)
from turngate.text_files import NotTextError, read_text
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail

MARGIN: Final = "    "
RISK_STYLE: Final = {"low": "green", "medium": "yellow", "high": "bold red"}


def show_request(request: RequestDetail, *, with_words: bool = True, whole: bool = True) -> None:
    """Print everything that a decision needs. Nothing in it can move the cursor or hide a character.

    ``with_words``: also print what the agent said with the call; False where its step was printed just before. ``whole``:
    nothing of the call is folded.
    """
    risk = request.risk
    terminal.line("")
    terminal.line((request.tool_name, "bold"), f"  {request.kind} {request.id}, agent {request.agents}")
    for label, words in lead_lines(request.tasks, request.latest_message):
        terminal.line((f"  {label} ", "dim"), words)
    if request.summary:
        terminal.line(("  what it does ", "dim"), (plain_line(request.summary), "bold"))
    _show_same_calls(request)
    _show_call(fold_call(request, whole=whole))
    _show_unseen(request)
    for label, words in lost_start_lines(request.lost_start):
        terminal.line((f"  {label} ", "dim"), words.replace("\n", f"\n{MARGIN}"))
    _show_origins(request)
    _show_around(request)
    terminal.line(
        ("  risk ", "dim"), (risk, RISK_STYLE.get(risk, "")), ("  effect ", "dim"), request.manifest.effect,
        ("  asked by ", "dim"), plain_line(request.rule, 100), ("  ", ""), plain_line(request.reason, 300),
    )  # fmt: skip
    for label, text in _more_facts(request):
        terminal.line((f"  {label} ", "dim"), text)
    earlier = None if request.earlier is None else request.earlier.precondition
    if (changed := what_changed(earlier, request.precondition)) is not None:
        terminal.line(("  what changed since that approval", "dim"))
        for piece in diff_lines(read_diff(changed).lines):
            terminal.line(MARGIN, piece)
    for words, style in decision_lines(request.decision):
        terminal.line((f"  {words}", style))
    _show_result(request)
    for label, words in consequence_lines(request.leads_to, request.time_left):
        terminal.line((f"  {label}: ", "dim"), words)
    if with_words and request.agent_words.strip():
        terminal.line(("  the agent says", "dim"))
        terminal.line(("\n".join(AGENT_MARGIN + line for line in plain(request.agent_words).split("\n")), "cyan"))


def _show_same_calls(request: RequestDetail) -> None:
    for each in request.same_calls:
        terminal.line(MARGIN, (plain_line(f"{each.words}."), "bold yellow"))


def _show_origins(request: RequestDetail) -> None:
    lines = origin_lines(request.origins)
    if lines and request.origins is not None:
        terminal.line((f"  where the arguments come from ({request.origins.note})", "dim"))
    for words, doubt in lines:
        terminal.line(MARGIN, (f"{doubt} " if doubt else "", "bold yellow"), (words, "" if doubt else "dim"))


def _show_around(request: RequestDetail) -> None:
    if request.siblings:
        terminal.line(("  other calls of the same step", "dim"))
    for words in sibling_lines(request):
        terminal.line(MARGIN, words)
    for label, words in precedent_lines(request.precedent):
        terminal.line((f"  {label} " if label else MARGIN, "dim"), words)


def _show_call(call: FoldedCall) -> None:
    if call.preview.pieces:
        terminal.line(("  preview", "dim"))
        for piece in call.preview.pieces:
            terminal.line(MARGIN, piece)
        terminal.line(("  arguments", "dim"))
    for piece in call.arguments.pieces:
        terminal.line(MARGIN, piece)


def _show_unseen(request: RequestDetail) -> None:
    if words := unseen_words(request.unseen_secrets):
        terminal.line(MARGIN, (words, "bold red"))


def _show_result(request: RequestDetail) -> None:
    if words := not_run_words(request.not_run):
        terminal.line(("  approved, and ", "dim"), (words, "yellow"))
    if request.result is None or request.presentation is None:
        return
    kind = request.result.kind if isinstance(request.result, Failure) else "result"
    terminal.line(("  ", ""), (plain_line(kind, 64), "dim"))
    for piece in presentation_lines(request.presentation):
        terminal.line(MARGIN, piece)


def _more_facts(request: RequestDetail) -> Iterator[tuple[str, str]]:
    """Yield the facts that only some requests have, each as a label and a line."""
    if request.manifest.kind == "agent":
        yield "runs", "another agent; its own calls are judged one by one"
    if request.manifest.origin:
        origin = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in request.manifest.origin.items())
        yield "comes from", plain_line(origin, 300)
    if request.confinement is not None:
        yield "confined" if request.confinement.confined else "UNCONFINED", plain_line(request.confinement.text, 300)
    if request.judged is not None:
        yield "the judge", judgement_words(request.judged)
    yield from _deciding(request)
    if request.precondition is not None:
        yield "depends on", plain_line(depends_on(request.precondition, indented=False), 300)
    if request.waits_to_start and request.starts_at is not None:
        yield "approved", start_words(request.id, request.starts_at)
    if request.instead_of:
        yield "instead of", f"the approval {request.instead_of}{_by_whom(request)}, which no longer counts"
    if request.replaced_by:
        yield "asked again", f"as {request.replaced_by}. {request.void_words or 'This answer no longer counts.'}"
    yield from _crashes(request)
    if request.in_part is not None:
        yield "the result", part_words(request.in_part, request.run_id, request.tool_call_id)


def _crashes(request: RequestDetail) -> Iterator[tuple[str, str]]:
    for crash in request.crashes:
        about = f" ({plain_line(crash.about, 100)})" if crash.about else ""
        yield "crashed", f"{plain_line(crash.says, 100)}{about}: turngate logs {crash.id}"


def _by_whom(request: RequestDetail) -> str:
    earlier = request.earlier
    return "" if earlier is None else f" by {plain_line(earlier.decided_by, 100)} at {second(earlier.decided_at)}"


def _deciding(request: RequestDetail) -> Iterator[tuple[str, str]]:
    """Yield who may decide and what is still missing, where that is out of the ordinary."""
    terms = request.ask_terms
    if request.quorum > 1:
        who = ", ".join(plain_line(each.decided_by, 100) for each in request.given)
        yield "approvals", f"{request.approvals} of {request.quorum}{f' ({who})' if who else ''}; one rejection ends it"
    if terms.roles or terms.people:
        yield "decided by", plain_line(", ".join([*(f"role {role}" for role in terms.roles), *terms.people]), 300)
    if request.not_by:
        yield "not by", not_by(request)
    if request.claimed_by and request.claimed_until and from_text(request.claimed_until) > now():
        yield "claimed by", f"{plain_line(request.claimed_by, 100)} until {second(request.claimed_until)}"
    if request.parked_at and request.status == "pending":
        yield "parked", f"since {second(request.parked_at)}: it does not expire"


StillOpen = Callable[[], bool]
OnGate = Callable[[RequestDetail, StillOpen], None]
"""What to do about a pending request. Call the second argument while waiting: it prints what happened meanwhile and returns
whether the request is still open."""

POLL_SECONDS: Final = 0.1
OUTCOMES: Final[dict[str, Resolution]] = {"h": "happened", "d": "did_not_happen", "t": "tell_model"}
MENU: Final[dict[Verb, str]] = {
    "approve": "[a]pprove",
    "edit": "[e]dit",
    "reject": "[r]eject",
    "respond": "re[s]pond",
}
UNFOLD: Final = "un[f]old the whole call"
OUTCOME_MENU: Final = "it [h]appened, it [d]id not happen, [t]ell the model that no one knows"
KEYS: Final[dict[str, Verb]] = {"a": "approve", "e": "edit", "r": "reject", "s": "respond"}


class _DecidedElsewhereError(Exception):
    """The request ended, for example on the page, while the prompt was waiting."""


class GatePrompt:
    """Asks the user at this terminal about one request at a time."""

    def __init__(self, client: SyncTurngateClient) -> None:
        self._client = client
        self._folded: FoldedCall | None = None
        self._edit: str | None = None

    def __call__(self, request: RequestDetail, still_open: StillOpen) -> None:
        """Print the request and send the user's decision. Enter leaves it to the page."""
        call = fold_call(request)
        self._edit = None
        self._show(request, call if call.is_folded else None)
        try:
            while not self._answered(request, still_open):
                pass
        except _DecidedElsewhereError:
            pass
        if self._edit is not None:
            terminal.line(("  your edit, as you typed it:", "yellow"))
            for piece in plain(self._edit).split("\n"):
                terminal.line(MARGIN, piece)

    def _show(self, request: RequestDetail, folded: FoldedCall | None) -> None:
        """Print the request. ``folded``: its call, if some of it is folded."""
        show_request(request, with_words=False, whole=folded is None)
        self._folded = folded
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # Earlier keys were not meant for this request.

    def _unfold(self, request: RequestDetail, key: str, *, runs: bool) -> bool:
        """Print the whole call, if the key asks for it, or would run it unseen. Return whether it was printed."""
        if self._folded is None or not (key == "f" or (runs and self._folded.must_unfold)):
            return False
        self._show(request, None)
        return True

    def _offered(self, words: str) -> str:
        fold = "" if self._folded is None else f", {UNFOLD}"
        return f"  {words}{fold}, or Enter to leave it to the page: "

    def _answered(self, request: RequestDetail, still_open: StillOpen) -> bool:
        """Take one answer. Return False to ask again."""
        try:
            return self._outcome(request, still_open) if request.kind == "outcome" else self._verb(request, still_open)
        except InvalidInputError as wrong:
            terminal.line(("  not accepted: ", "yellow"), wrong.message)
            return False
        except TurngateError as refused:
            terminal.line(("  not decided: ", "yellow"), refused.message)
            return self._edit is None

    def _verb(self, request: RequestDetail, still_open: StillOpen) -> bool:
        menu = self._menu(request)
        key = self._line(self._offered(", ".join(menu.values())), still_open).lower()[:1]
        if not key:
            return True
        verb = KEYS.get(key)
        if self._drop_edit(key) or self._unfold(request, key, runs=verb == "approve") or verb not in menu:
            return False
        match verb:
            case "approve":
                if request.risk == "high" and not self._confirmed(request, still_open):
                    return False
                self._send(request, self._order_to_run(request))
            case "edit":
                self._edit = edit_text(request.input, self._edit)
                if self._edit is None:
                    terminal.line("  nothing was changed")
                return False  # What changes is shown first, and then asked about.
            case "reject":
                reason = self._line("  why (the agent reads it): ", still_open)
                self._send(request, DecisionOrder(verb=verb, digest=request.digest, message=reason))
            case "respond":
                self._respond(request, still_open)
        return True

    def _menu(self, request: RequestDetail) -> dict[Verb, str]:
        """Return the verbs that are offered, with their words. Print what an edit changes that isn't sent yet."""
        menu: dict[Verb, str] = {verb: MENU[verb] for verb in request.allowed_verbs}
        if self._edit is None:
            return menu
        edited = changes(request.input, self._edit)
        for words in change_lines(edited):
            terminal.line(MARGIN, (words, "yellow"))
        return {**menu, "approve": f"[a]{edited.approve_words[1:]}, [d]rop your edit", "edit": "[e]dit it again"}

    def _drop_edit(self, key: str) -> bool:
        """Drop an edit that isn't sent, if the key asks for it. Return whether it was dropped."""
        if key != "d" or self._edit is None:
            return False
        self._edit = None
        terminal.line("  your edit is dropped")
        return True

    def _order_to_run(self, request: RequestDetail) -> DecisionOrder:
        """Return the decision that runs the call: with the edit, once there is one."""
        verb: Verb = "approve" if self._edit is None else "edit"
        return DecisionOrder(verb=verb, digest=request.digest, args=self._edit)

    def _respond(self, request: RequestDetail, still_open: StillOpen) -> None:
        text = self._line("  your answer: ", still_open)
        if request.kind == "question":
            order = DecisionOrder(verb="respond", digest=request.digest, args=answer_json(request, text))
        else:
            order = DecisionOrder(verb="respond", digest=request.digest, message=text)
        self._send(request, order)

    def _outcome(self, request: RequestDetail, still_open: StillOpen) -> bool:
        key = self._line(self._offered(OUTCOME_MENU), still_open).lower()[:1]
        if not key:
            return True
        outcome = OUTCOMES.get(key)
        if self._unfold(request, key, runs=outcome == "did_not_happen") or outcome is None:
            return False
        result = self._line("  its result, as JSON: ", still_open) if outcome == "happened" else None
        order = DecisionOrder(verb="respond", digest=request.digest, args=result or None, outcome=outcome)
        self._send(request, order)
        return True

    def _confirmed(self, request: RequestDetail, still_open: StillOpen) -> bool:
        typed = self._line(f"  high risk: type {request.tool_name} to approve: ", still_open)
        return typed == request.tool_name

    def _send(self, request: RequestDetail, order: DecisionOrder) -> None:
        answer = self._client.decide(request.id, order)
        self._edit = None
        if answer.starts_at is not None:
            terminal.line("  ", start_words(request.id, answer.starts_at))

    def _line(self, prompt: str, still_open: StillOpen) -> str:
        """Read one line, and print what happens meanwhile. Raises _DecidedElsewhereError when the request ends first."""
        _show_prompt(prompt)
        while True:
            ready, _writable, _failed = select.select([sys.stdin], [], [], POLL_SECONDS)
            if ready:
                # Not readline(): what Python buffers beyond this line would be invisible to select.
                return os.read(sys.stdin.fileno(), 65_536).decode(errors="replace").strip()
            if not still_open():
                raise _DecidedElsewhereError


def _show_prompt(prompt: str) -> None:
    terminal.out().print(prompt, end="", style="bold")
    sys.stdout.flush()


def edit_text(text: str, draft: str | None = None) -> str | None:
    """Let the user change a text in $VISUAL or $EDITOR. Return None if it was not changed.

    ``draft``: an earlier edit of the text, to continue with.
    """
    parsed = json_text.parse(text)
    # Numbers keep their digits. Characters that an editor would hide become \\u escapes, which mean the same in JSON.
    original = text if parsed is None or parsed.doubled else json_text.dump(parsed.tree, indent=2)
    original = escape_hidden(original)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="turngate-edit-") as directory:
        file = Path(directory) / "arguments.json"
        file.write_text((draft or original) + "\n", encoding="utf-8")
        try:
            subprocess.run([*editor, str(file)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InvalidInputError(
                f"the editor {editor[0]!r} failed ({error}): set EDITOR to one that works"
            ) from None
        edited = _read_edited(file)
    return None if edited == original.strip() else edited


def _read_edited(file: Path) -> str:
    try:
        return read_text(file).strip()
    except NotTextError as error:
        raise InvalidInputError(f"the editor saved something that can't be read: {error}") from None


def answer_json(request: RequestDetail, text: str) -> str:
    """Return a question's answer as JSON: the text as the one string that is asked for, else the text itself."""
    properties = request.manifest.success.get("properties")
    if isinstance(properties, dict) and len(properties) == 1:
        name, schema = next(iter(properties.items()))
        if isinstance(schema, dict) and schema.get("type") == "string":
            return json.dumps({name: text}, ensure_ascii=False)
    return text
