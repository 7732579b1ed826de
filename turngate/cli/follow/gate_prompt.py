"""Answer a request in the terminal. A key that was typed before the request was on screen never counts."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turngate.cli import terminal
from turngate.cli.follow.request_view import show_request
from turngate.client import SyncTurngateClient
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.requests import Outcome, Verb
from turngate.domain.text import json_text
from turngate.domain.text.hidden_text import escape_hidden
from turngate.wire.requests import RequestDetail

StillOpen = Callable[[], bool]
OnGate = Callable[[RequestDetail, StillOpen], None]
"""What to do about a pending request. Call the second argument while waiting: it prints what happened meanwhile and returns
whether the request is still open."""

POLL_SECONDS: Final = 0.1
OUTCOMES: Final[dict[str, Outcome]] = {"h": "happened", "d": "did_not_happen", "t": "tell_model"}
MENU: Final = {
    "approve": "[a]pprove",
    "edit": "[e]dit",
    "reject": "[r]eject",
    "respond": "re[s]pond",
}
OUTCOME_MENU: Final = "it [h]appened, it [d]id not happen, [t]ell the model that no one knows"
KEYS: Final[dict[str, Verb]] = {"a": "approve", "e": "edit", "r": "reject", "s": "respond"}


class _DecidedElsewhereError(Exception):
    """The request ended, for example on the page, while the prompt was waiting."""


class GatePrompt:
    """Asks the user at this terminal about one request at a time."""

    def __init__(self, client: SyncTurngateClient) -> None:
        self._client = client

    def __call__(self, request: RequestDetail, still_open: StillOpen) -> None:
        """Print the request and send the user's decision. Enter leaves it to the page."""
        show_request(request, with_words=False)
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # Earlier keys were not meant for this request.
        try:
            while not self._answered(request, still_open):
                pass
        except _DecidedElsewhereError:
            return

    def _answered(self, request: RequestDetail, still_open: StillOpen) -> bool:
        """Take one answer. Return False to ask again."""
        try:
            return self._outcome(request, still_open) if request.kind == "outcome" else self._verb(request, still_open)
        except InvalidInputError as wrong:
            terminal.line(("  not accepted: ", "yellow"), wrong.message)
            return False
        except TurngateError as refused:
            terminal.line(("  not decided: ", "yellow"), refused.message)
            return True

    def _verb(self, request: RequestDetail, still_open: StillOpen) -> bool:
        offered = ", ".join(MENU[verb] for verb in request.allowed_verbs)
        key = self._line(f"  {offered}, or Enter to leave it to the page: ", still_open).lower()[:1]
        if not key:
            return True
        verb = KEYS.get(key)
        if verb is None or verb not in request.allowed_verbs:
            return False
        match verb:
            case "approve":
                if request.risk == "high" and not self._confirmed(request, still_open):
                    return False
                self._send(request, verb)
            case "edit":
                edited = edit_text(request.input)
                if edited is None:
                    terminal.line("  nothing was changed")
                    return False
                self._send(request, verb, args=edited)
            case "reject":
                self._send(request, verb, message=self._line("  why (the agent reads it): ", still_open))
            case "respond":
                self._respond(request, still_open)
        return True

    def _respond(self, request: RequestDetail, still_open: StillOpen) -> None:
        text = self._line("  your answer: ", still_open)
        if request.kind == "question":
            self._send(request, "respond", args=answer_json(request, text))
        else:
            self._send(request, "respond", message=text)

    def _outcome(self, request: RequestDetail, still_open: StillOpen) -> bool:
        key = self._line(f"  {OUTCOME_MENU}, or Enter to leave it to the page: ", still_open).lower()[:1]
        if not key:
            return True
        outcome = OUTCOMES.get(key)
        if outcome is None:
            return False
        result = self._line("  its result, as JSON: ", still_open) if outcome == "happened" else None
        self._send(request, "respond", args=result or None, outcome=outcome)
        return True

    def _confirmed(self, request: RequestDetail, still_open: StillOpen) -> bool:
        typed = self._line(f"  high risk: type {request.tool_name} to approve: ", still_open)
        return typed == request.tool_name

    def _send(
        self,
        request: RequestDetail,
        verb: Verb,
        *,
        args: str | None = None,
        message: str = "",
        outcome: Outcome | None = None,
    ) -> None:
        answer = self._client.decide(
            request.id, verb=verb, digest=request.digest, args=args, message=message, outcome=outcome
        )
        if answer.status is None:
            terminal.line("  recorded; it takes effect when a worker runs again")

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


def edit_text(text: str) -> str | None:
    """Let the user change a text in $VISUAL or $EDITOR. Return None if it was not changed."""
    parsed = json_text.parse(text)
    # Numbers keep their digits. Characters that an editor would hide become \\u escapes, which mean the same in JSON.
    original = text if parsed is None or parsed.doubled else json_text.dump(parsed.tree, indent=2)
    original = escape_hidden(original)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="turngate-edit-") as directory:
        file = Path(directory) / "arguments.json"
        file.write_text(original + "\n", encoding="utf-8")
        try:
            subprocess.run([*editor, str(file)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InvalidInputError(
                f"the editor {editor[0]!r} failed ({error}): set EDITOR to one that works"
            ) from None
        edited = file.read_text(encoding="utf-8").strip()
    return None if edited == original.strip() else edited


def answer_json(request: RequestDetail, text: str) -> str:
    """Return a question's answer as JSON: the text as the one string that is asked for, else the text itself."""
    properties = request.manifest.success.get("properties")
    if isinstance(properties, dict) and len(properties) == 1:
        name, schema = next(iter(properties.items()))
        if isinstance(schema, dict) and schema.get("type") == "string":
            return json.dumps({name: text}, ensure_ascii=False)
    return text
