"""Answers that take more than a key: words, a form, a typed name, a grant. Each keeps what was typed until it was taken."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from turngate.client.requests import Where
from turngate.domain.errors import TurngateError
from turngate.domain.requests import Verb
from turngate.frontends.tui.answering import Content, FormAnswer, WordsAnswer, answer_of
from turngate.frontends.tui.dialogs import AskDialog
from turngate.frontends.tui.form_dialog import Asking, FormDialog
from turngate.frontends.tui.form_model import Draft
from turngate.frontends.tui.granting import asking_for_grant, wanted_and_shown
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.request_moves import RequestMoves
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import plain_line
from turngate.wire.requests import RequestDetail


class RequestAnswers(RequestMoves):
    """A screen that asks for what is sent with a decision. It says itself what may be decided now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "grant", "Approve, and calls like it"),
        Binding("r", "ask('reject')", "Reject"),
        Binding("e", "ask('edit')", "Edit"),
        Binding("s", "ask('respond')", "Answer"),
        Binding("h", "ask('happened')", "It happened"),
    ]

    def __init__(self, session: Session, request_id: str, order: list[str], where: Where | None = None) -> None:
        super().__init__(session, request_id, order, where)
        self._dialog: AskDialog | FormDialog | None = None

    @abstractmethod
    def deciding(self, verb: Verb) -> RequestDetail | None:
        """Return the request if this may be decided of it now; else say why not."""

    @abstractmethod
    def is_call_on_screen(self) -> bool:
        """Tell whether the call is on screen and all of it has been; else bring it there and say so."""

    def outcome_request(self) -> RequestDetail | None:
        """Return the request if it may be answered what became of its call; else say why not."""
        request = self.deciding("respond")
        if request is not None and request.kind != "outcome":
            self.say("That is for calls of which nobody knows whether they happened.")
            return None
        return request

    def complain(self, words: str) -> None:
        """Say something in the dialog that is open, if one is."""
        if self._dialog is not None and self._dialog.is_attached:
            self._dialog.complain(words)

    def taken(self, sent: Sent | None) -> None:
        """Say what came of what was sent, and look again."""
        self._dialog = None
        if sent is not None:
            self.say(sent.words, is_bad=not sent.taken)
        self.refresher.ask()

    def confirm(self, request: RequestDetail, what: str, send: Callable[[], Awaitable[Sent]]) -> AskDialog:
        """Return what asks for the tool's name, typed, before ``send``."""
        name = plain_line(request.tool_name, 64)

        async def deliver(_typed: str) -> Sent:
            return await send()

        return AskDialog(
            "High risk",
            f"Type the tool's name to {what} it: {name}",
            deliver,
            check=lambda typed: None if typed == request.tool_name else f"Not its name, {name}: nothing was sent.",
            pasteable=False,
        )

    def action_ask(self, what: str) -> None:
        """Ask for a text and decide with it."""
        self._arming.disarm()
        verb: Verb
        match what:
            case "reject" | "edit":
                verb = what
            case _:
                verb = "respond"
        request = self.deciding(verb) if what != "happened" else self.outcome_request()
        if request is None or (what == "respond" and request.kind == "outcome"):
            return
        self._ask(request, answer_of(request, what))

    def _ask(self, request: RequestDetail, answer: WordsAnswer | FormAnswer) -> None:
        key = (request.id, answer.what)

        async def send(text: str) -> Sent:
            sent = await self._decide(request, answer, answer.content(text))
            if sent.taken:
                self.session.drafts.pop(key, None)
                self.session.forms.pop(key, None)
            return sent

        if isinstance(answer, FormAnswer):
            self.open_dialog(self._form(key, answer, send))
        else:
            self.open_dialog(self._words(key, answer, send))

    async def _decide(self, request: RequestDetail, answer: WordsAnswer | FormAnswer, content: Content) -> Sent:
        decide = partial(self.session.decide, request, answer.verb, **content)
        if answer.verb != "edit" or request.risk != "high":
            return await decide()
        confirmed = await self.app.push_screen_wait(self.confirm(request, "run", decide))
        return confirmed or Sent(taken=False, words="Not confirmed; nothing was sent.")

    def _form(self, key: tuple[str, str], answer: FormAnswer, send: Callable[[str], Awaitable[Sent]]) -> FormDialog:
        forms = self.session.forms
        asking = Asking(
            title=answer.title,
            lead=answer.lead,
            draw=answer.draw,
            raw=answer.raw,
            send=send,
            fault=answer.fault,
            suggested=answer.suggested,
        )
        draft = forms.get(key) or answer.draft
        return FormDialog(asking, draft.copy(), partial(forms.__setitem__, key))

    def _words(self, key: tuple[str, str], answer: WordsAnswer, send: Callable[[str], Awaitable[Sent]]) -> AskDialog:
        drafts = self.session.drafts

        def fault(text: str) -> str | None:
            drafts[key] = text
            return answer.fault(text)

        return AskDialog(
            answer.title,
            answer.lead,
            send,
            text=drafts.get(key, ""),
            many=answer.many,
            check=fault,
            on_leave=partial(drafts.__setitem__, key),
        )

    def action_grant(self) -> None:
        """Approve what is on screen, and calls like it from now on: the exact pattern is shown first."""
        self._arming.disarm()
        request = self.deciding("approve")
        if request is None or not self.is_call_on_screen():
            return
        self.run_worker(self._grant(request))

    async def _grant(self, request: RequestDetail) -> None:
        try:
            preview = await self.client.preview_grant(request.id)
        except TurngateError as error:
            self.say(f"No grant. {problem_words(error)}", is_bad=True)
            return
        if preview.ungrantable is not None:
            self.say(f"No grant can answer calls like this: {preview.ungrantable}.")
            return
        key = (request.id, "grant")

        async def send(args: str) -> Sent:
            sent = await wanted_and_shown(self.app, self.session, request, args)
            if sent.taken:
                self.session.forms.pop(key, None)
            return sent

        asking = asking_for_grant(self.session, request, send)
        draft = self.session.forms.get(key) or Draft()
        self.open_dialog(FormDialog(asking, draft.copy(), partial(self.session.forms.__setitem__, key)))

    def open_dialog(self, dialog: AskDialog | FormDialog) -> None:
        """Open a dialog, and say what came of it."""
        self._dialog = dialog
        self.app.push_screen(dialog, self.taken)
