"""Which runs a list shows: one value for the API, the page, the commands and the client. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict

from turngate.domain.requests import RunStatus
from turngate.domain.runs.failure_classes import FailureClass
from turngate.domain.runs.inbox import MAX_WORDS, Name


class RunFilter(BaseModel):
    """Which runs, all conditions together; None: whatever it is.

    ``search``: words that all occur in the run (:meth:`has_words_in`). ``cause``: how it failed, as its explanation says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: RunStatus | None = None
    search: Name | None = None
    agent: Name | None = None
    cause: FailureClass | None = None

    @property
    def words(self) -> list[str]:
        """What a search looks for, in order; further words than ``MAX_WORDS`` are left out."""
        return [] if self.search is None else self.search.split()[:MAX_WORDS]

    def has_words_in(self, *texts: str | None) -> bool:
        """Tell whether each word of the search occurs in one of these texts, in capitals or not."""
        visible = [text.casefold() for text in texts if text]
        return all(any(word.casefold() in text for text in visible) for word in self.words)

    @property
    def query(self) -> str:
        """The conditions as the query of a URL."""
        return urlencode({name: value for name, value in self if value is not None})


EVERY_RUN: Final = RunFilter()
LIVE_RUNS: Final = RunFilter(status="running")
