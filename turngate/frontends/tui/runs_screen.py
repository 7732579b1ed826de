"""The list of runs, newest first: all of them, some of them, or the stalled ones with what each waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast, get_args

from rich.text import Text
from textual.binding import Binding, BindingType

from turngate.client.runs import RunsWhere
from turngate.domain.requests import RunStatus
from turngate.domain.runs.failure_classes import FailureClass
from turngate.frontends.tui.form_dialog import FormDialog, FormSpec
from turngate.frontends.tui.form_model import Control, Draft, choice_of, object_form
from turngate.frontends.tui.run_text import summary_text
from turngate.frontends.tui.screens import ListScreen
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import joined, line, plain_line
from turngate.wire.events import EventView
from turngate.wire.explanation import WaitKind
from turngate.wire.runs import RunSummary

MAX_RUNS: Final = 100
"""Most runs that are listed: the newest."""
MOST_PAGES: Final = 5
"""Of a search, or of stalled runs: a page of them may be empty and not the last."""
STALLED: Final = "stalled"


def _options(values: Iterable[str]) -> list[tuple[str | None, str]]:
    return [(None, "any"), *((value, value.replace("_", " ")) for value in values)]


FILTER_FORM: Final = object_form(
    Control(
        name="search",
        key="search",
        kind="line",
        text="",
        required=False,
        description="words in the task, an agent or an id",
    ),
    Control(name="agent", key="agent", kind="line", text="", required=False),
    choice_of("status", _options((*get_args(RunStatus), STALLED))),
    choice_of("cause", _options(get_args(FailureClass)), description="how it failed"),
    choice_of("waits_for", _options(get_args(WaitKind)), description="what a stalled run waits for"),
)


@dataclass(frozen=True)
class Filter:
    """Conditions, all together; empty: none. ``is_stalled``: live runs that are held up, or that wait for ``waits_for``."""

    where: RunsWhere = field(default_factory=RunsWhere)
    is_stalled: bool = False
    waits_for: WaitKind | None = None

    @property
    def says(self) -> str:
        """The conditions in a few words, made harmless."""
        named = dict(self.where)
        if self.is_stalled:
            named = {"status": STALLED} if self.waits_for is None else {"waits for": self.waits_for}
        return plain_line(", ".join(f"{name} {value}" for name, value in named.items()), 60).replace("_", " ")


def filter_of(form: dict[str, str]) -> Filter | None:
    """Return what the form says; None: what a run waits for is asked together with something else."""
    typed = {name: text.strip() for name, text in form.items() if text.strip()}
    waits_for = cast("WaitKind | None", typed.pop("waits_for", None))
    if typed.get("status") == STALLED:
        del typed["status"]
    elif waits_for is None:
        return Filter(cast("RunsWhere", typed))
    return None if typed else Filter(is_stalled=True, waits_for=waits_for)


def filter_form(narrow: Callable[[Filter], None]) -> FormSpec:
    """Return the form. ``narrow``: takes what it says."""

    async def take(args: str) -> Sent:
        wanted = filter_of(json.loads(args))
        if wanted is None:
            return Sent(
                taken=False,
                words="Stalled runs can be listed by what they wait for alone: leave the other fields empty.",
            )
        narrow(wanted)
        return Sent(taken=True, words="")

    return FormSpec(
        title="Which runs are listed",
        lead=line("Only runs to which all of it applies. Empty: any."),
        draw=lambda _source: FILTER_FORM,
        send=take,
        pointer="",
    )


class RunsScreen(ListScreen):
    """A list of runs; Enter opens one, ``/`` narrows the list."""

    KEYS = "Enter open  / filter  1 inbox  3 grants  F5 look again  u back  ? keys  q quit"
    EMPTY = "There are no runs. Start one with `turngate run`."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", "Filter")]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.filter = Filter()
        self.runs: dict[str, tuple[RunSummary, str]] = {}
        self._is_more = False

    def take_event(self, event: EventView) -> None:
        """Look again when a run may have changed."""
        if event.type.startswith(("run.", "step.")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the newest runs under the filter."""
        wanted = self.filter
        runs: list[tuple[RunSummary, str]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            if wanted.is_stalled:
                stuck = await self.client.list_stuck_runs(cause=wanted.waits_for, limit=MAX_RUNS, cursor=cursor)
                runs += [(each.run, each.waits_for.says) for each in stuck.items]
                cursor = stuck.next_cursor
            else:
                page = await self.client.list_runs(limit=MAX_RUNS, cursor=cursor, **wanted.where)
                runs += [(run, "") for run in page.items]
                cursor = page.next_cursor
            if cursor is None or len(runs) >= MAX_RUNS:
                break
        if wanted is not self.filter:
            return  # It was changed meanwhile, and is asked again.
        self.runs = {run.id: (run, reason) for run, reason in runs}
        self._is_more = cursor is not None
        self.looked()

    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return the runs."""
        for run, reason in self.runs.values():
            text = summary_text(run, width)
            why = [line("      ", (plain_line(reason, max(8, width - 8)), "yellow"))] if reason else []
            yield run.id, joined([text, *why])

    def heading(self) -> Text:
        """Return how many there are, under which filter."""
        live = sum(run.status == "running" for run, _reason in self.runs.values())
        count = f"the newest {len(self.runs)}" if self._is_more else str(len(self.runs))
        narrowed = f"  only {self.filter.says}" if self.filter.says else ""
        return line(("Runs  ", "bold"), f"{count}, {live} live", (narrowed, "yellow"))

    def empty_words(self) -> str:
        """Return why nothing is listed."""
        if self._is_more:
            return "None of the newer runs is under this filter; older ones were not looked at. / changes it."
        return "No run is under this filter; / changes it." if self.filter.says else self.EMPTY

    def open(self, row_id: str) -> None:
        """Open a run."""
        self.session.navigator.open_run(row_id)

    def action_filter(self) -> None:
        """Ask which runs are to be listed."""

        def narrow(to: Filter) -> None:
            self.filter = to
            self.refresher.ask()

        key = ("runs", "filter")
        draft = self.session.forms.get(key) or Draft()

        def keep(typed: Draft) -> None:
            self.session.forms[key] = typed

        self.app.push_screen(FormDialog(filter_form(narrow), draft.copy(), keep))
