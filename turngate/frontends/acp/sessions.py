"""Which of an editor's sessions is which conversation, kept in small files: an editor comes back with its session's id.

A session is named before its conversation is there, which begins with the first prompt. A conversation's own id is a
session's name too, so that one which began elsewhere can be continued.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from turngate.domain.errors import ConfigurationError, NotFoundError

LOOKED_AT: Final = 500
"""Files that are read to name conversations by their sessions: the newest."""
_CONVERSATION: Final = TypeAdapter(Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")])
_OURS: Final = re.compile(r"session_[0-9a-f]{24}")


class _Note(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    conversation_id: str | None


@dataclass(kw_only=True)
class Session:
    """One session of the editor. ``directory``: the project's, absolute. ``run_id``: its newest run's.

    ``conversation_id``: None before the first prompt.
    """

    id: str
    directory: str
    conversation_id: str | None = None
    run_id: str | None = None


class Sessions:
    """The notes, one file a session, below a directory that is made when the first is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, directory: str) -> Session:
        """Return a new session, which is kept. Raises ConfigurationError when nothing can be kept there."""
        session = Session(id=f"session_{secrets.token_hex(12)}", directory=directory)
        self.keep(session)
        return session

    def keep(self, session: Session) -> None:
        """Keep which conversation a session is; one that goes by its conversation's id needs no note."""
        if not _OURS.fullmatch(session.id):
            return
        note = _Note(conversation_id=session.conversation_id)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._directory / f".{session.id}.{secrets.token_hex(4)}"
            fresh.write_text(note.model_dump_json(), encoding="utf-8")
            os.replace(fresh, self._file(session.id))  # noqa: PTH105 - in one step: never half a note
        except OSError as error:
            raise ConfigurationError(
                f"the session cannot be kept in {self._directory} ({error.strerror or error}): set XDG_STATE_HOME to a "
                "directory this user may write"
            ) from None

    def conversation(self, session_id: str) -> str | None:
        """Return a session's conversation; None when it has none yet. Raises NotFoundError for one that was never kept here."""
        try:
            if not _OURS.fullmatch(session_id):
                return _CONVERSATION.validate_python(session_id)
            return _Note.model_validate_json(self._file(session_id).read_text(encoding="utf-8")).conversation_id
        except (OSError, ValidationError, UnicodeDecodeError):
            raise NotFoundError(
                f"there is no session {session_id!r} here: begin a new one, or load a conversation by its own id"
            ) from None

    def by_conversation(self) -> dict[str, str]:
        """Return conversation → session, of the newest sessions kept here: an editor knows them by the names it was given."""
        ids: dict[str, str] = {}
        try:
            files = sorted(self._directory.glob("session_*.json"), key=lambda file: file.stat().st_mtime)
        except OSError:  # one was removed meanwhile
            return ids
        for file in files[-LOOKED_AT:]:
            if _OURS.fullmatch(file.stem) is None:
                continue
            with suppress(NotFoundError):
                if (conversation_id := self.conversation(file.stem)) is not None:
                    ids[conversation_id] = file.stem
        return ids

    def _file(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.json"
