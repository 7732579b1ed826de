"""What the screens share: the client, who one is, what was typed and not sent, and the ids of what is sent."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from turngate.client import TurngateClient
from turngate.client.requests import Where
from turngate.domain.errors import TurngateError, UnavailableError
from turngate.domain.runs.groups import Grouping
from turngate.frontends.tui.form_model import Draft
from turngate.frontends.tui.problems import problem_words, problems_of
from turngate.frontends.tui.texts import plain_line
from turngate.wire.access import MeView
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import DecisionOrder, Look
from turngate.wire.requests import RequestDetail


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The result of something that was sent. ``taken``: it was; otherwise ``words`` say why not, and nothing is lost.

    ``problems``: the places of the input that do not fit, ``pointer`` and ``message`` each. ``run_id``: the run that was
    started by it. ``grant_id``: the grant that was saved with it; ``reviews``: what waits and
    it covers is to be reviewed.
    """

    taken: bool
    words: str
    problems: Sequence[Mapping[str, str]] = ()
    run_id: str | None = None
    grant_id: str | None = None
    reviews: bool = False


class Navigator(Protocol):
    """Opens screens: the app does. A screen opens another one by this and does not import it."""

    def open_request(
        self,
        request_id: str,
        *,
        order: list[str],
        where: Where | None = None,
        group: Grouping | None = None,
        wanted: str = "",
    ) -> None:
        """Open a request. ``order``, ``where``, ``group``: the inbox's, for the next one. ``wanted``: what the user is to do."""

    def open_run(self, run_id: str) -> None:
        """Open a run."""


@dataclass
class Session:
    """Shared by all screens. ``drafts``, ``forms``: what was typed and not sent, by what it was for.

    ``looks``: request id → what tells how it was looked at until now.
    """

    client: TurngateClient
    navigator: Navigator
    who: MeView | None = None
    away: str = ""
    drafts: dict[tuple[str, str], str] = field(default_factory=dict)
    forms: dict[tuple[str, str], Draft] = field(default_factory=dict)
    looks: dict[str, Callable[[], Look]] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    @property
    def me(self) -> str:
        """One's own name; empty until it is known."""
        return "" if self.who is None else self.who.name

    @property
    def may_decide(self) -> bool:
        """Whether the token may decide at all; so long as it is not known, the API says it."""
        return self.who is None or not {"requests:decide", "admin"}.isdisjoint(self.who.scopes)

    def id_of(self, *content: object) -> str:
        """Return the id under which this content is sent: the same for the same, so that sent twice it counts once."""
        return self._ids.setdefault(json.dumps(content), f"tui_{secrets.token_hex(12)}")

    async def decide(self, request: RequestDetail, order: DecisionOrder) -> Sent:
        """Send a decision about the very call that ``request`` shows.

        The same decision keeps its id, so that one whose answer was lost can be sent again and counts once.
        """
        decision_id = self.id_of(request.id, order.model_dump(mode="json"))
        look = self.looks[request.id]() if request.id in self.looks else Look()
        order = order.model_copy(update=dict(look))
        try:
            answer = await self.client.decide(request.id, order, decision_id=decision_id)
        except UnavailableError as error:
            words = "It may not have arrived. Send it again: the same decision counts once"
            return Sent(taken=False, words=f"{words}. ({problem_words(error)})")
        except TurngateError as error:
            return Sent(taken=False, words=f"Not decided. {problem_words(error)}", problems=problems_of(error))
        if answer.status == "pending":
            return Sent(taken=True, words=f"Counts as one of {request.quorum} approvals that it needs.")
        return Sent(taken=True, words=f"Done: {answer.status}.{_others(answer.answered)}", grant_id=answer.grant_id)


def _others(answered: Sequence[DecidedItem]) -> str:
    """Return what happened to the requests that waited, in words; empty: none did."""
    if not answered:
        return ""
    problems = [str(each.problem.get("detail", "")) for each in answered if each.problem is not None]
    words = f" {len(answered) - len(problems)} of {len(answered)} others that waited are approved, too."
    return f"{words} Not approved: {plain_line(problems[0], 200)}" if problems else words


def needs_word(sent: Sent) -> bool:
    """Tell whether the same decision is taken once the person has typed a word with it."""
    return any(each["pointer"] == "/confirm" for each in sent.problems)
