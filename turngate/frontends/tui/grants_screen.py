"""The grants in force, newest first: what runs without asking, and the key that ends it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from turngate.domain.errors import TurngateError
from turngate.frontends.tui.double_press import DoublePress
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.screens import ListScreen, LiveScreen
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import Folded, ago, at, folded, joined, line, plain_line, until
from turngate.frontends.tui.widgets import ScrolledText
from turngate.wire.events import EventView
from turngate.wire.policy import GrantDetail, GrantView

MAX_GRANTS: Final = 200


class RevokeScreen(LiveScreen):
    """A screen from which a grant can be revoked, by two presses."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "revoke", "Revoke")]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._double_press = DoublePress(self, self.say)

    def grant(self) -> GrantView | None:
        """Return the grant that a key is about."""
        return None

    def take_event(self, event: EventView) -> None:
        """Look again when a grant came, was used or ended."""
        if event.type.startswith("grant."):
            self.refresher.ask()

    def action_revoke(self) -> None:
        """Revoke the grant: calls that have not started by now are asked about."""
        grant = self.grant()
        if grant is None:
            return
        if grant.ended is not None:
            self.say(f"It has ended: {grant.ended.replace('_', ' ')}.")
            return
        words = f"Press r again to revoke this: {plain_line(grant.says, 300)}"
        # Armed for this very grant: another one may be marked by the second press.
        self._double_press.press(f"r {grant.id}", words, lambda: self.run_worker(self._revoke(grant)))

    async def _revoke(self, grant: GrantView) -> None:
        try:
            await self.client.revoke_grant(grant.id)
            self.say(f"Revoked: {plain_line(grant.says, 300)}")
        except TurngateError as error:
            self.say(f"Not revoked. {problem_words(error)}", is_bad=True)
        self.refresher.ask()


class GrantsScreen(RevokeScreen, ListScreen):
    """A list of the grants in force."""

    KEYS = "Enter open  r r revoke  1 inbox  2 runs  u back  ? keys  q quit"
    EMPTY = "No grant is in force. `g` on a request approves its call, and allows calls like it for a while."

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.grants: dict[str, GrantView] = {}

    async def look(self) -> None:
        """Read the grants."""
        self.grants = {each.id: each for each in (await self.client.list_grants(limit=MAX_GRANTS)).items}
        self.looked()

    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return the grants."""
        return ((grant.id, _row(grant, width)) for grant in self.grants.values())

    def heading(self) -> Text:
        """Return how many there are."""
        count = len(self.grants)
        return line(("Grants  ", "bold"), f"{count} in force: such calls run without asking")

    def open(self, row_id: str) -> None:
        """Open a grant."""
        self.app.push_screen(GrantScreen(self.session, row_id))

    def grant(self) -> GrantView | None:
        """Return the marked grant."""
        return self.grants.get(self.marked or "")


class GrantScreen(RevokeScreen):
    """One grant, with the calls that it let through."""

    KEYS = "j k scroll  r r revoke  o the request it was made with  u back  ? keys"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_request", "Its request")]

    def __init__(self, session: Session, grant_id: str) -> None:
        super().__init__(session)
        self._grant_id = grant_id
        self._grant: GrantDetail | None = None

    def middle(self) -> ComposeResult:
        """Draw the grant."""
        yield ScrolledText(Static(Text(), id="grant"))

    def on_mount(self) -> None:
        """Let the keys scroll."""
        self.query_one(ScrolledText).focus()

    async def look(self) -> None:
        """Read the grant."""
        self._grant = grant = await self.client.get_grant(self._grant_id)
        self.title_line(line(("Grant  ", "bold"), (plain_line(grant.pattern.tool, 64), "bold"), f"  {_status(grant)}"))
        self.show_part("#grant", _detail(grant))

    def grant(self) -> GrantView | None:
        """Return it."""
        return self._grant

    def action_open_request(self) -> None:
        """Open the request with whose decision it was made."""
        request_id = None if self._grant is None else self._grant.request_id
        if request_id is None:
            self.say("It was made by itself, not with a decision.")
            return
        self.session.navigator.open_request(request_id, order=[request_id])


def _row(grant: GrantView, width: int) -> Text:
    room = max(8, width - 8)
    facts = [
        _reach(grant),
        f"used {grant.uses:,} of {grant.max_uses:,}",
        f"by {plain_line(grant.created_by, 40)} {ago(grant.created_at)} ago",
        f"ends {until(grant.expires_at)}",
    ]
    return joined(
        [
            line("  ", (plain_line(grant.says, room), "bold")),
            line("      ", (plain_line(", ".join(facts), room), "dim")),
        ]
    )


def _detail(grant: GrantDetail) -> Folded:
    lines = [
        at("", ("WHAT IT ALLOWS", "bold")),
        at("  ", plain_line(grant.says)),
        at("  ", _reach(grant)),
        at("  ", ("used ", "dim"), f"{grant.uses:,} of {grant.max_uses:,} times"),
        *([] if grant.total_used is None else [at("  ", ("total so far ", "dim"), grant.total_used)]),
        at("  ", _status(grant)),
        at("  ", ("made by ", "dim"), f"{plain_line(grant.created_by, 100)} {ago(grant.created_at)} ago"),
    ]
    if grant.note:
        lines.append(at("  ", ("note ", "dim"), plain_line(grant.note)))
    lines.extend([at(""), at("", ("WHAT IT LET THROUGH", "bold"))])
    for each in grant.used_by:
        used = f"{ago(each.used_at)} ago"
        lines.append(at("  ", (f"{used:<10}", "dim"), f"run {each.run_id}, call {plain_line(each.tool_call_id, 60)}"))
    if not grant.used_by:
        lines.append(at("  ", ("nothing yet", "dim")))
    return folded(lines)


def _status(grant: GrantView) -> str:
    if grant.ended == "revoked" and grant.revoked_at:
        return f"revoked by {plain_line(grant.revoked_by or 'someone', 60)} {ago(grant.revoked_at)} ago"
    return f"ended: {grant.ended.replace('_', ' ')}" if grant.ended else f"in force; ends {until(grant.expires_at)}"


def _reach(grant: GrantView) -> str:
    match grant.scope:
        case "run":
            return f"in run {grant.run_id}"
        case "agent":
            return f"in every run of agent {plain_line(grant.agent or '', 60)}"
        case _:
            return "in every run of every agent"
