"""What the inbox is narrowed to: the page's own filters, asked for by a form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from turngate.client.requests import Where
from turngate.frontends.tui.form_dialog import Asking
from turngate.frontends.tui.form_model import Control, choice_of, object_form
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import line, plain_line

ANY: Final = (None, "any")
FORM: Final = object_form(
    Control(name="tool", key="tool", kind="line", text="", required=False),
    Control(name="agent", key="agent", kind="line", text="", required=False),
    choice_of("risk", [ANY, ("low", "low"), ("medium", "medium"), ("high", "high")]),
    choice_of("kind", [ANY, ("approval", "approval"), ("question", "question"), ("outcome", "outcome")]),
    Control(name="rule", key="rule", kind="line", text="", required=False),
    Control(name="claimed", key="claimed", kind="line", text="", required=False, description="me, nobody, or a name"),
)


@dataclass(frozen=True)
class Filter:
    """Conditions, all together; empty: none."""

    where: Where = field(default_factory=Where)

    @property
    def says(self) -> str:
        """The conditions in a few words, made harmless."""
        return plain_line(", ".join(f"{name} {value}" for name, value in self.where.items()), 60)


def asking_for(narrow: Callable[[Filter], None]) -> Asking:
    """Return the form. ``narrow``: takes what it says."""

    async def take(args: str) -> Sent:
        said = json.loads(args)
        narrow(Filter(cast(Where, {name: text.strip() for name, text in said.items() if text.strip()})))
        return Sent(taken=True, words="")

    return Asking(
        title="What the inbox shows",
        lead=line("Only requests to which all of it applies. Empty: any."),
        draw=lambda _source: FORM,
        send=take,
        pointer="",
    )
