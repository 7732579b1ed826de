"""The literal edit: its parameters, its failures, and the replacement itself. Pure; touches no file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from turngate import ToolFailure
from turngate.toolkits.text_files import MAX_TEXT_BYTES, TooLarge
from turngate.toolkits.workspace import Place


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("text files must not hold NUL characters")
    return text


WorkspacePath = Annotated[str, Field(min_length=1, description="Path inside the workspace, relative to it.")]
FileText = Annotated[str, AfterValidator(_without_nul)]


class Params(BaseModel):
    """Base of our tools' parameters: an argument we don't know is the model's mistake, and the model reads that."""

    model_config = ConfigDict(extra="forbid")


class TextNotFound(ToolFailure):
    """The text to replace is not in the file."""

    path: str
    reason: str = "old_text does not occur in the file; read the file again and copy the text exactly, spaces included"


class AmbiguousEdit(ToolFailure):
    """The text to replace is in the file more than once. ``matches``: how often."""

    path: str
    matches: int
    reason: str = "old_text occurs more than once; add lines around it until it is unique, or set replace_all"


class EditFileParams(Params):
    """A literal replacement: no patterns, no escapes."""

    path: WorkspacePath
    old_text: FileText = Field(min_length=1, description="Text to replace, exactly as it is in the file.")
    new_text: FileText = Field(description="Text to put in its place; empty deletes.")
    replace_all: bool = Field(default=False, description="Replace every occurrence instead of exactly one.")

    @model_validator(mode="after")
    def _changes_something(self) -> EditFileParams:
        if self.old_text == self.new_text:
            raise ValueError("new_text is the same as old_text, so the edit would change nothing")
        return self


def apply_edit(place: Place, before: str, params: EditFileParams) -> str:
    """Return the edited text. Raises TextNotFound, AmbiguousEdit or TooLarge (before the memory is spent)."""
    old, new = params.old_text, params.new_text
    first = before.find(old)
    if first < 0:
        raise TextNotFound(path=place.relative)
    matches = before.count(old)
    # `count` skips overlaps: in "aaa" it finds "aa" once, yet there are two places it could mean.
    if not params.replace_all and before.find(old, first + 1) >= 0:
        raise AmbiguousEdit(path=place.relative, matches=max(matches, 2))
    size = len(before.encode()) + matches * (len(new.encode()) - len(old.encode()))
    if size > MAX_TEXT_BYTES:
        raise TooLarge(path=place.relative, size_bytes=size)
    return before.replace(old, new)
