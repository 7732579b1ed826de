"""Gates in an editor: each open request of a run is a question there, and the answer is sent as that person's decision.

What is decided is what was shown: the decision bears the digest of the request that the question was made from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from acp.schema import PermissionOption, ToolCallUpdate

from turngate.client import TurngateClient
from turngate.domain.errors import TurngateError
from turngate.domain.grants import WantedGrant
from turngate.domain.requests import Outcome, Verb
from turngate.drivers import acp_showing as show
from turngate.drivers.acp_calls import Calls
from turngate.drivers.acp_editor import Editor
from turngate.wire.people import MeView
from turngate.wire.requests import RequestDetail

DECIDING: Final = frozenset({"requests:decide", "admin"})
GRANT_SECONDS: Final = 3600
GRANT_USES: Final = 100
MAX_PATTERN_CHARS: Final = 300
"""A longer pattern would be cut where it is shown, and nobody grants what they cannot see."""

_log = logging.getLogger("turngate.acp")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer that the editor offers, and the decision that it is."""

    option: PermissionOption
    verb: Verb
    outcome: Outcome | None = None
    grant: WantedGrant | None = None


class Gates:
    """The open requests of one turn, each asked about at once; whoever answers first, here or elsewhere, has decided."""

    def __init__(self, client: TurngateClient, editor: Editor, calls: Calls, me: MeView) -> None:
        self._client = client
        self._editor = editor
        self._calls = calls
        self._me = me
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._deciding: set[str] = set()

    def open(self, request_id: str) -> None:
        """Ask about a request."""
        if request_id not in self._asking:
            self._asking[request_id] = asyncio.create_task(self._ask(request_id))

    def ended(self, request_id: str) -> None:
        """Take the question about a request back: it was decided elsewhere, or has ended. An answer under way goes on."""
        task = self._asking.get(request_id)
        if task is not None and request_id not in self._deciding:
            task.cancel()

    async def close(self) -> None:
        """Take every question back, and wait for answers that are under way."""
        tasks = list(self._asking.values())
        for request_id in list(self._asking):
            self.ended(request_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, request_id: str) -> None:
        try:
            request = await self._client.get_request(request_id)
            if request.status != "pending":
                return
            known = self._calls.id_of(request.run_id, request.tool_call_id)
            choices = await self._choices(request)
            content = self._content(request, choices)
            await self._calls.change(known, content=content, kind=_kind(request))
            if not choices:
                return
            call = ToolCallUpdate(
                tool_call_id=known,
                title=show.title(request.tool_name, request.agents if "/" in request.path else ""),
                kind=_kind(request),
                status="pending",
                content=content,
                raw_input=show.as_json(request.input),
            )
            await self._decide(request, known, await self._answer(call, choices))
        except TurngateError as error:
            _log.warning("request %s: %s", request_id, error)
        except ConnectionError:  # the editor has gone; the request waits on
            return
        except Exception:  # noqa: BLE001 - a question that fails is left to the page, and the turn goes on
            _log.exception("request %s could not be asked about", request_id)

    async def _answer(self, call: ToolCallUpdate, choices: Sequence[Choice]) -> Choice | None:
        try:
            chosen = await self._editor.ask(call, [choice.option for choice in choices])
        except asyncio.CancelledError:
            await self._editor.withdraw(call.tool_call_id)
            raise
        return next((choice for choice in choices if choice.option.option_id == chosen), None)

    async def _decide(self, request: RequestDetail, known: str, choice: Choice | None) -> None:
        if choice is None:
            await self._calls.note(known, f"Left open: it can be decided at {self._page(request)}.")
            return
        self._deciding.add(request.id)
        try:
            answer = await self._client.decide(
                request.id, verb=choice.verb, digest=request.digest, outcome=choice.outcome, grant=choice.grant
            )
        except TurngateError as error:
            await self._calls.note(known, "Your answer does not count:", show.value(error.message))
        else:
            if answer.status is None:
                await self._calls.note(known, "Your answer is recorded; it takes effect when a worker runs again.")
        finally:
            self._deciding.discard(request.id)

    async def _choices(self, request: RequestDetail) -> list[Choice]:
        """Return what this person may answer here; what needs more than a click is left to the page."""
        if DECIDING.isdisjoint(self._me.scopes) or request.not_by == self._me.name:
            return []
        if request.kind == "outcome":
            return [_choice("tell", "Tell the agent that nobody knows", "reject_once", "respond", outcome="tell_model")]
        found: list[Choice] = []
        if "approve" in request.allowed_verbs and request.risk != "high":
            found.append(_choice("allow", "Allow once", "allow_once", "approve"))
            found += await self._grant(request)
        if "reject" in request.allowed_verbs:
            found.append(_choice("reject", "Reject", "reject_once", "reject"))
        return found

    async def _grant(self, request: RequestDetail) -> list[Choice]:
        """Return the answer that grants calls like this one, where the API says that there may be one."""
        try:
            seen = await self._client.preview_grant(request.id)
        except TurngateError:  # the call can be allowed without
            return []
        pattern = show.marked(seen.says)
        if seen.ungrantable is not None or seen.pattern is None or len(pattern) > MAX_PATTERN_CHARS:
            return []
        grant = WantedGrant(pattern=seen.pattern, scope="run", expires_after_seconds=GRANT_SECONDS, max_uses=GRANT_USES)
        name = f"Always allow in this run, for an hour, at most {GRANT_USES} times: {pattern}"
        return [_choice("always", name, "allow_always", "approve", grant=grant)]

    def _content(self, request: RequestDetail, choices: Sequence[Choice]) -> list[show.Content]:
        facts = [f"risk {request.risk} · effect {request.manifest.effect} · asked by {request.rule}: {request.reason}"]
        if request.quorum > 1:
            facts.append(f"approvals {request.approvals} of {request.quorum}")
        if (judged := request.judged) is not None:
            facts.append(f"the judge (a model, {judged.model}) {judged.said}: {judged.reason}")
        return [
            show.arguments(request.input),
            *show.preview(request.preview_kind, request.preview, directory=self._calls.directory),
            show.value("\n".join(facts)),
            show.paragraph(self._elsewhere(request, choices)),
        ]

    def _elsewhere(self, request: RequestDetail, choices: Sequence[Choice]) -> str:
        page = self._page(request)
        if not choices:
            return f"You may not decide this one here: somebody who may does at {page}."
        if request.kind == "question":
            return f"This asks for an answer in words: give it at {page}."
        if request.kind == "outcome":
            return f"This call may or may not have happened: say which at {page}."
        if request.risk == "high":
            return (
                "This call is of high risk: approving it takes the tool's name typed out, at "
                f"{page} or in a terminal with `turngate watch {request.run_id}`. Here it can be rejected."
            )
        return f"To change the arguments, or say why not: {page}."

    def _page(self, request: RequestDetail) -> str:
        return f"{self._client.url}/requests/{request.id}"


def _choice(
    option_id: str,
    name: str,
    kind: str,
    verb: Verb,
    *,
    outcome: Outcome | None = None,
    grant: WantedGrant | None = None,
) -> Choice:
    option = PermissionOption.model_validate({"option_id": option_id, "name": name, "kind": kind})
    return Choice(option=option, verb=verb, outcome=outcome, grant=grant)


def _kind(request: RequestDetail) -> show.Kind:
    if request.preview_kind == "diff":
        return "edit"
    return "execute" if request.preview_kind == "command" else show.kind_of(request.manifest.effect)
