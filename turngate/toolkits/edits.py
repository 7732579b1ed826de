"""The literal edit: its parameters, its failures, and the replacement itself. Pure; touches no file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from turngate import ToolFailure
from turngate.toolkits.line_ends import BYTE_ORDER_MARK, Lines, with_ends
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
    old_text: FileText = Field(
        min_length=1,
        description="Text to replace, exactly as it is in the file.",
    )
    new_text: FileText = Field(description="Text to put in its place; empty deletes.")
    replace_all: bool = Field(default=False, description="Replace every occurrence instead of exactly one.")

    @model_validator(mode="after")
    def _changes_something(self) -> EditFileParams:
        if self.old_text == self.new_text:
            raise ValueError("new_text is the same as old_text, so the edit would change nothing")
        return self


def apply_edit(place: Place, before: str, params: EditFileParams) -> str:
    r"""Return the edited text. Raises TextNotFound, AmbiguousEdit or TooLarge (before the memory is spent).

    Every line end in ``old_text`` finds any of the file's, whose ends and byte order mark stay. If ``old_text`` has ``\r`` and
    is in the file exactly so, nothing is adapted; nor is ``new_text`` if only that has ``\r``.
    """
    old, new = params.old_text, params.new_text
    is_exact = "\r" in old and old in before
    keeps_ends = not is_exact and ("\r" in old or "\r" not in new)
    if not is_exact:
        old = _as_in_lines(old, before)
    if keeps_ends:
        new = _as_in_lines(new, before)
    lines = Lines(before)
    text = before if is_exact else lines.text
    first, matches = text.find(old), text.count(old)
    if first < 0:
        raise TextNotFound(path=place.relative)
    # `count` skips overlaps: in "aaa" it finds "aa" once, yet there are two places it could mean.
    if not params.replace_all and text.find(old, first + 1) >= 0:
        raise AmbiguousEdit(path=place.relative, matches=max(matches, 2))
    size = len(before.encode()) + matches * (len(new.encode()) - len(old.encode()))
    if size > MAX_TEXT_BYTES:
        raise TooLarge(path=place.relative, size_bytes=size)
    if is_exact:
        return before.replace(old, new)
    pieces: list[str] = []
    at = 0
    for match in lines.places(old):
        pieces += (before[at : match.start], with_ends(new, old, match.ends) if keeps_ends else new)
        at = match.end
    return "".join((*pieces, before[at:]))


def _as_in_lines(text: str, before: str) -> str:
    """Return a model's text with the line ends that :class:`Lines` has, without a byte order mark if the file has one."""
    if before.startswith(BYTE_ORDER_MARK):
        text = text.removeprefix(BYTE_ORDER_MARK) or text
    return text.replace("\r\n", "\n").replace("\r", "\n")
