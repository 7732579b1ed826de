"""What the screens share: the client, who one is, what was typed and not sent, and the ids of decisions."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field

from turngate.client import TurngateClient
from turngate.domain.errors import InvalidInputError, TurngateError, UnavailableError
from turngate.domain.requests import Outcome, Verb
from turngate.tui.texts import plain_line
from turngate.wire.requests import RequestDetail


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What came of something that was sent. ``taken``: it was; otherwise ``words`` say why not, and nothing is lost."""

    taken: bool
    words: str


@dataclass
class Session:
    """Shared by all screens. ``drafts``: what was typed and not sent, by what it was for."""

    client: TurngateClient
    me: str = ""
    away: str = ""
    drafts: dict[tuple[str, str], str] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    async def decide(
        self,
        request: RequestDetail,
        verb: Verb,
        *,
        args: str | None = None,
        message: str = "",
        outcome: Outcome | None = None,
    ) -> Sent:
        """Send a decision about the very call that ``request`` shows.

        The same decision keeps its id, so that one whose answer was lost can be sent again and counts once.
        """
        content = json.dumps([request.id, request.digest, verb, args, message, outcome])
        decision_id = self._ids.setdefault(content, f"tui_{secrets.token_hex(12)}")
        try:
            answer = await self.client.decide(
                request.id,
                verb=verb,
                digest=request.digest,
                args=args,
                message=message,
                outcome=outcome,
                decision_id=decision_id,
            )
        except UnavailableError as error:
            words = "Nobody knows whether it arrived. Send it again: the same decision counts once"
            return Sent(taken=False, words=f"{words}. ({plain_line(error.message, 200)})")
        except TurngateError as error:
            return Sent(taken=False, words=f"Not decided: {problem_words(error)}")
        if answer.status is None:
            return Sent(taken=True, words="Recorded; it takes effect when a worker runs again.")
        if answer.status == "pending":
            return Sent(taken=True, words=f"Counts as one of {request.quorum} approvals that it needs.")
        return Sent(taken=True, words=f"Done: {answer.status}.")


def problem_words(error: TurngateError) -> str:
    """Return what is wrong in words, with each place of the input that does not fit."""
    errors = error.details.get("errors") if isinstance(error, InvalidInputError) else None
    places = [
        f"{each.get('pointer') or 'all of it'}: {each.get('message', '')}"
        for each in (errors if isinstance(errors, list) else [])
        if isinstance(each, dict) and str(each.get("message", "")) not in error.message
    ]
    return plain_line(f"{error.message} {'; '.join(places)}".strip(), 1_000)
