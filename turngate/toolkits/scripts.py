"""The scripts that a command names: what an approval of ``sh x.sh`` is also about.

They are found generously: of a shell or an interpreter, each word that names a file of the workspace counts, so that no
option hides the one that runs. Where it is certain which of them runs, the others are only compared, so that a command can
write the files that it is given. What a script itself starts isn't looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from turngate import ToolFailure
from turngate.domain.policy.command_line import SimpleCommand, Unparsable, Word
from turngate.policies.shell.parser import read_command
from turngate.policies.shell.programs import SHELLS, interpreter
from turngate.toolkits.text_files import content_stamp, read_text
from turngate.toolkits.workspace import Place

MAX_SCRIPTS: Final = 20
_RUN_FILES: Final = SHELLS | {"source", ".", "make", "gmake", "bun", "deno", "pwsh"}
_RUN_THE_FIRST: Final = SHELLS | {"source", ".", "python", "perl", "ruby", "php", "lua", "node"}
"""Their first argument, if it is neither an option nor one of ``_WORDS``, is the file that they run."""
_WORDS: Final = frozenset({"inspect", "debug"})


class Script(NamedTuple):
    """A file that a command may run. ``stamp``: of its content. ``copy``: of that very content; None: not made."""

    place: Place
    stamp: str
    copy: Path | None


def find(command: str, workspace: Path, copies: Path | None = None) -> list[Script]:
    """Return each script that a command names and that exists; a command that can't be read is taken word by word.

    Looks at the disk: at most ``MAX_SCRIPTS`` files. ``copies``: a directory in which those that may run are copied, unless they
    are too large.
    """
    scripts: dict[tuple[str, ...], Script] = {}
    for path, runs in sorted(_candidates(command), key=lambda each: not each[1]):
        copy = copies / str(len(scripts)) if copies is not None and runs else None
        try:
            place = Place.inside(workspace, path)
            stamp = None if place.parts in scripts else content_stamp(place, copy)
        except ToolFailure:
            continue  # a directory, or outside the workspace, where no agent writes
        if stamp is not None:
            scripts[place.parts] = Script(place, stamp, copy if copy is not None and copy.exists() else None)
        if len(scripts) == MAX_SCRIPTS:
            break
    return list(scripts.values())


def stamps(scripts: Iterable[Script]) -> dict[str, str]:
    """Return the scripts' names with their contents' stamps."""
    return {script.place.relative: script.stamp for script in scripts}


def texts(command: str, workspace: Path) -> str:
    """Return the text of the scripts that a command names, each below its name; empty: it names none."""
    places = [script.place for script in find(command, workspace)]
    return "".join(f"\n\n--- {place.relative}\n{_text(place)}" for place in places)


def _text(place: Place) -> str:
    try:
        return read_text(place)
    except ToolFailure as failure:
        return f"(not shown: {failure.fields.get('reason', failure.kind)})"


def _candidates(command: str) -> Iterator[tuple[str, bool]]:
    """Yield paths, from the workspace and every directory that the command enters; and whether what is there may run."""
    commands = read_command(command)
    if isinstance(commands, Unparsable) or commands.doubts:
        yield from ((word.strip("'\"`();|&<>"), True) for word in command.split())
    if isinstance(commands, Unparsable):
        return
    directories = [Path()]
    for simple in commands.simple:
        if [word.text for word in simple.words[:1]] == ["cd"]:
            directories += [directories[-1] / (word.text or "") for word in simple.words[1:2]]
        for path, runs in _named_by(simple):
            yield from ((str(directory / path), runs) for directory in directories)


def _named_by(command: SimpleCommand) -> Iterator[tuple[str, bool]]:
    if not command.words:
        return
    program = command.words[0].text or ""
    if "/" in program:
        yield program, True
    name = interpreter(Path(program).name) or Path(program).name
    if name not in _RUN_FILES and interpreter(name) is None:
        return
    is_certain = _is_certain(name, [word.text for word in command.words[1:2]])
    for at, path in enumerate(map(_operand, command.words[1:])):
        if path:
            yield path, at == 0 or not is_certain


def _is_certain(program: str, first: list[str | None]) -> bool:
    """Tell whether a program's first argument, if there is one, is all that it runs: ``python -m black x.py`` runs a module."""
    match first:
        case ["-m"]:
            return program == "python"
        case [str(text)]:
            return program in _RUN_THE_FIRST and text not in _WORDS and not text.startswith(("-", "+"))
    return False


def _operand(word: Word) -> str | None:
    """Return the path that a word may be: the value of ``--option=path`` too."""
    if word.text is None or not word.text.startswith("-"):
        return word.text
    return word.text.partition("=")[2]
