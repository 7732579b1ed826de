"""The scripts that a command names: what an approval of ``sh x.sh`` is also about.

They are found generously: of a shell or an interpreter, each word that names a file of the workspace counts, so that no
option hides the one that runs. What a script itself starts isn't looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from turngate import ToolFailure
from turngate.domain.policy.command_line import SimpleCommand, Unparsable, Word
from turngate.policies.shell.parser import read_command
from turngate.policies.shell.programs import SHELLS, interpreter
from turngate.toolkits.text_files import content_stamp, read_text
from turngate.toolkits.workspace import Place

MAX_SCRIPTS: Final = 20
_RUN_FILES: Final = SHELLS | {"source", ".", "make", "gmake", "bun", "deno", "pwsh"}


def stamps(command: str, workspace: Path) -> dict[str, str]:
    """Return each script that a command names and that exists, with its content's stamp.

    Looks at the disk: at most ``MAX_SCRIPTS`` files. A command that can't be read is taken word by word.
    """
    return {place.relative: stamp for place, stamp in _scripts(command, workspace)}


def texts(command: str, workspace: Path) -> str:
    """Return the text of the scripts that a command names, each below its name; empty: it names none."""
    return "".join(f"\n\n--- {place.relative}\n{_text(place)}" for place, _ in _scripts(command, workspace))


def _text(place: Place) -> str:
    try:
        return read_text(place)
    except ToolFailure as failure:
        return f"(not shown: {failure.fields.get('reason', failure.kind)})"


def _scripts(command: str, workspace: Path) -> list[tuple[Place, str]]:
    scripts: dict[tuple[str, ...], tuple[Place, str]] = {}
    for path in _candidates(command):
        try:
            place = Place.inside(workspace, path)
            stamp = content_stamp(place)
        except ToolFailure:
            continue  # a directory, or outside the workspace, where no agent writes
        if stamp is not None:
            scripts[place.parts] = (place, stamp)
        if len(scripts) == MAX_SCRIPTS:
            break
    return list(scripts.values())


def _candidates(command: str) -> Iterator[str]:
    """Yield paths that may be scripts, each from the workspace and from every directory that the command enters."""
    commands = read_command(command)
    if isinstance(commands, Unparsable) or commands.doubts:
        yield from (word.strip("'\"`();|&<>") for word in command.split())
    if isinstance(commands, Unparsable):
        return
    directories = [Path()]
    for simple in commands.simple:
        if [word.text for word in simple.words[:1]] == ["cd"]:
            directories += [directories[-1] / (word.text or "") for word in simple.words[1:2]]
        for path in _named_by(simple):
            yield from (str(directory / path) for directory in directories)


def _named_by(command: SimpleCommand) -> Iterator[str]:
    if not command.words:
        return
    program = command.words[0].text or ""
    if "/" in program:
        yield program
    name = Path(program).name
    if name in _RUN_FILES or interpreter(name) is not None:
        yield from filter(None, map(_operand, command.words[1:]))


def _operand(word: Word) -> str | None:
    """Return the path that a word may be: the value of ``--option=path`` too."""
    if word.text is None or not word.text.startswith("-"):
        return word.text
    return word.text.partition("=")[2]
