"""The inbox: what waits for a person, the most urgent first, live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast

from rich.text import Text
from textual.binding import Binding, BindingType

from turngate.client.requests import Where
from turngate.domain.runs.groups import Group, Grouping, groups_of
from turngate.domain.runs.inbox import count_words
from turngate.frontends.tui.bulk_screen import BulkScreen
from turngate.frontends.tui.form_dialog import FormDialog, FormSpec
from turngate.frontends.tui.form_model import Control, Draft, choice_of, object_form
from turngate.frontends.tui.request_text import item_text
from turngate.frontends.tui.screens import ListScreen
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import joined, line, plain_line
from turngate.text.run_words import differs_words, group_words
from turngate.wire.events import EventView
from turngate.wire.requests import RequestItem

ANY: Final = (None, "any")
FILTER_FORM: Final = object_form(
    Control(
        name="search",
        key="search",
        kind="line",
        text="",
        required=False,
        description="words in the tool, the arguments, the task, an agent or a person",
    ),
    Control(name="tool", key="tool", kind="line", text="", required=False),
    Control(name="agent", key="agent", kind="line", text="", required=False),
    choice_of("risk", [ANY, ("low", "low"), ("medium", "medium"), ("high", "high")]),
    choice_of("kind", [ANY, ("approval", "approval"), ("question", "question"), ("outcome", "outcome")]),
    Control(name="rule", key="rule", kind="line", text="", required=False),
    Control(
        name="claimed", key="claimed", kind="line", text="", required=False, description="`me`, `nobody` or a name"
    ),
    choice_of("order", [(None, "the most urgent first"), ("age", "the oldest first")]),
    choice_of("group", [(None, "none"), ("run", "by run"), ("step", "by step"), ("alike", "alike calls")]),
)


@dataclass(frozen=True)
class Filter:
    """Conditions, all together; empty: none. ``group``: how the requests are put in groups."""

    where: Where = field(default_factory=Where)
    group: Grouping | None = None

    @property
    def says(self) -> str:
        """The conditions in a few words, made harmless."""
        return plain_line(", ".join(f"{name} {value}" for name, value in self.where.items()), 60)


def filter_form(narrow: Callable[[Filter], None]) -> FormSpec:
    """Return the form. ``narrow``: takes what it says."""

    async def take(args: str) -> Sent:
        form = json.loads(args)
        group = cast("Grouping | None", form.pop("group", "") or None)
        narrow(Filter(cast(Where, {name: text.strip() for name, text in form.items() if text.strip()}), group))
        return Sent(taken=True, words="")

    return FormSpec(
        title="What the inbox shows",
        lead=line("Only requests to which all of it applies. Empty: any."),
        draw=lambda _source: FILTER_FORM,
        send=take,
        pointer="",
    )


MAX_REQUESTS: Final = 200
"""Most requests that are listed: those that come first."""


class InboxScreen(ListScreen):
    """The requests that wait. ``x`` chooses some of them for :class:`BulkScreen`, ``/`` narrows them."""

    KEYS = "Enter open  a approve  r reject  e edit  x choose  / filter  2 runs  ? keys"
    EMPTY = "Nothing waits. New requests appear here by themselves."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "pick", "Choose"),
        Binding("X", "pick_group", "Choose its group"),
        Binding("a", "act('approve')", "Approve"),
        Binding("r", "act('reject')", "Reject"),
        Binding("e", "act('edit')", "Edit"),
        Binding("slash", "filter", "Filter"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.items: dict[str, RequestItem] = {}
        self.groups: list[Group[RequestItem]] = []
        self.picked: set[str] = set()
        self.filter = Filter()
        self._total = 0

    def take_event(self, event: EventView) -> None:
        """Look again when a request may have come or gone."""
        if event.type.startswith(("request.", "run.ended", "run.recovered")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the first requests."""
        wanted = self.filter
        page = await self.client.list_requests(limit=MAX_REQUESTS, **wanted.where)
        total = len(page.items)
        if page.next_cursor is not None:
            counted = await self.client.count_requests(**wanted.where)
            total = counted.count + counted.is_more
        if wanted is not self.filter:
            return  # It was changed meanwhile, and is asked again.
        self._total = total
        by = wanted.group
        self.groups = [Group(items=page.items)] if by is None else groups_of(page.items, by)
        self.items = {item.id: item for group in self.groups for item in group.items}
        self.picked &= self.items.keys()
        self.looked()

    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return the requests."""
        by = self.filter.group
        for group in self.groups:
            for place, each in enumerate(group.items):
                text = item_text(each, me=self.session.me, picked=each.id in self.picked, width=width)
                lines = (
                    [line((plain_line(group_words(group, by), width), "bold underline"))] if by and not place else []
                )
                odd = differs_words(group, each)
                yield each.id, joined([*lines, text, *([line("      ", (odd, "yellow"))] if odd else [])])

    def heading(self) -> Text:
        """Return how many wait, under which filter, and who one is."""
        waits = f"{count_words(self._total)} {'waits' if self._total == 1 else 'wait'} for a person"
        more = f", the first {len(self.items)} shown" if self._total > len(self.items) else ""
        picked = f", {len(self.picked)} chosen" if self.picked else ""
        who = f"  {plain_line(self.session.me, 40)}" if self.session.me else ""
        narrowed = f"  only {self.filter.says}" if self.filter.where else ""
        return line(("Inbox  ", "bold"), f"{waits}{more}{picked}", (narrowed, "yellow"), (who, "dim"))

    def empty_words(self) -> str:
        """Return why nothing is shown."""
        return "Nothing waits under this filter; / changes it." if self.filter.where else self.EMPTY

    def open(self, row_id: str) -> None:
        """Open a request."""
        self._open(row_id)

    def action_pick(self) -> None:
        """Choose the marked request, or not."""
        if (marked := self.marked) is not None:
            self.picked ^= {marked}
            self.draw()

    def action_pick_group(self) -> None:
        """Choose all of the marked request's group, or none if all are chosen."""
        marked = self.marked
        group = next(
            ({item.id for item in each.items} for each in self.groups if marked in [i.id for i in each.items]), set()
        )
        self.picked = self.picked - group if group <= self.picked else self.picked | group
        self.draw()

    def action_act(self, verb: str) -> None:
        """Open what is to be decided: nothing is decided from a line of a list."""
        chosen = [item for item in self.items.values() if item.id in self.picked]
        marked = self.marked
        if chosen and verb != "edit":
            self.app.push_screen(BulkScreen(self.session, chosen), lambda _: self.picked.clear())
        elif marked is not None:
            self._open(marked, wanted=verb)

    def _open(self, request_id: str, wanted: str = "") -> None:
        order = list(self.items)
        self.session.navigator.open_request(
            request_id, order=order, where=self.filter.where, group=self.filter.group, wanted=wanted
        )

    def action_filter(self) -> None:
        """Ask what is to be shown."""

        def narrow(to: Filter) -> None:
            self.filter = to
            self.refresher.ask()

        key = ("inbox", "filter")
        draft = self.session.forms.get(key) or Draft()

        def keep(typed: Draft) -> None:
            self.session.forms[key] = typed

        self.app.push_screen(FormDialog(filter_form(narrow), draft.copy(), keep))
