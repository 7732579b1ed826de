"""The scripts that a command names: what an approval of ``sh x.sh`` is also about.

They are found generously: of a shell or an interpreter, each word that names a file of the workspace counts, so that no
option hides the one that runs. Where it is certain which of them runs, the others are only compared, so that a command can
write the files that it is given; where it isn't, the request says so. What a script itself starts isn't looked at.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from turngate import ToolFailure
from turngate.domain.policy.command_line import Commands, SimpleCommand, Unparsable
from turngate.policies.shell.builtins import doubt_of_unread
from turngate.policies.shell.parser import read_command
from turngate.policies.shell.programs import SHELLS, interpreter
from turngate.toolkits.loaded_files import LOADED_FILES
from turngate.toolkits.text_files import MAX_TEXT_BYTES, content_stamp
from turngate.toolkits.workspace import Place

MAX_SCRIPTS: Final = 20
UNCERTAIN: Final = "What this command runs isn't known: it may run other files than those shown, or files that change."
_SOURCING: Final = frozenset({"source", "."})
_RUN_FILES: Final = SHELLS | _SOURCING | {"make", "gmake", "bun", "deno", "pwsh"}
_RUN_THE_FIRST: Final = SHELLS | _SOURCING | {"python", "perl", "ruby", "php", "lua", "node"}
"""Their first argument, if it is neither an option nor one of ``_WORDS``, is the file that they run."""
_WORDS: Final = frozenset({"inspect", "debug"})
_FLAGS: Final = {**dict.fromkeys(SHELLS, re.compile(r"[-+][efuvx]+")), "python": re.compile(r"-[uBEsSIOq]+")}
"""Options before the file that change nothing about which one runs."""
_ENTERING: Final = frozenset({"cd", "pushd", "popd", "chroot"})
_ENTERING_OPTION: Final = re.compile(r"-\w*[CD]|--(?:ch|cw|cd|dir|work|prefix|root)|-(?:exec|ok)dir\Z")
"""How an option begins that may name a directory to enter."""
_PLAIN_NAME: Final = re.compile(r"\.?\w[\w.@+ -]*")
_AGAIN: Final = re.compile(r"\b(?:for|while|until|select|trap)\b")
"""Where one of them is in a line, it may enter a directory more than once."""
_CODE: Final = re.compile(r"-[a-z]*c")
_HIDDEN: Final = "(not shown: "
_PROGRAM: Final = b"\x7fELF"
_MODULE: Final = re.compile(r"-[bBdEhiIOPqsSuvVx?]*m(.*)", re.DOTALL)
_RUN_THEIR_FILE: Final = frozenset({"pdb", "cProfile", "profile", "trace", "runpy", "coverage"})
_MOST_DIRECTORIES: Final = 20


class Script(NamedTuple):
    """A file that a command names. ``stamp``: of its content. ``copy``: of that very content; None: not made.

    ``runs``: it may be what runs; else it is only compared.
    """

    place: Place
    stamp: str
    runs: bool
    copy: Path | None


class Scripts(NamedTuple):
    """The files that a command names. ``certain``: no others run, but what they start themselves."""

    files: list[Script]
    certain: bool

    @property
    def stamps(self) -> dict[str, str]:
        """Name → stamp of the content."""
        return {script.place.relative: script.stamp for script in self.files}

    def texts(self) -> str:
        """Return what the copies of those that may run say, each below its name."""
        return "".join(f"\n\n--- {each.place.relative}\n{_text(each)}" for each in self.files if each.runs)


class _NamedPaths(NamedTuple):
    """What one program of a command line names, and the directory that it is in, as far as that is known.

    ``script``: the path that it plainly runs; None: any of them, at ``most`` so many if it is certain which (-1: it never is).
    ``is_sourced``: the shell itself runs it, so it may change what later commands run.
    """

    directory: Path
    paths: list[str]
    script: str | None = None
    most: int = 0
    runs_none: bool = False
    is_sourced: bool = False

    def runs(self, path: str) -> bool:
        """Tell whether the program may run this path of its."""
        return not self.runs_none and self.script in {None, path}


class _CommandPaths(NamedTuple):
    """What a command line says. ``directories``: where its paths may begin. ``doubtful``: it may run more than it says."""

    namings: list[_NamedPaths]
    directories: list[Path]
    doubtful: bool


def find(command: str, workspace: Path, copies: Path | None = None) -> Scripts:
    """Return each script that a command names and that exists; a command that can't be read is taken word by word.

    Looks at the disk: at most ``MAX_SCRIPTS`` files. ``copies``: a directory in which those that may run are copied, unless they
    are too large.
    """
    reading, looks = _read(command, workspace), _Looks(workspace, copies)
    certain, running = not reading.doubtful, list[_NamedPaths]()
    for naming in reading.namings:
        present = looks.files(naming, reading.directories, runs=True)
        if naming.script is None:
            certain = certain and len(present) <= naming.most
        else:
            certain = certain and present == {looks.file(naming.directory / naming.script, runs=True)}
        running += [naming] if present else []
    certain = certain and not looks.hides_text()
    if len(running) > 1:  # what is sourced may change which ones the others are
        certain = certain and all(looks.only_sets_variables(naming) for naming in running if naming.is_sourced)
    for naming in reading.namings:
        looks.files(naming, reading.directories, runs=False)
    return Scripts(list(looks.scripts.values()), certain and not looks.is_full)


class _Looks:
    """What was found in the workspace so far. ``is_full``: there were more scripts than are compared."""

    def __init__(self, workspace: Path, copies: Path | None) -> None:
        self.scripts: dict[tuple[str, ...], Script] = {}
        self.is_full = False
        self._workspace, self._copies = workspace, copies

    def files(self, naming: _NamedPaths, directories: list[Path], *, runs: bool) -> set[object]:
        """Look for those paths of a program that it may run, or for the others; return which files there are."""
        paths = [directory / path for path in naming.paths if naming.runs(path) is runs for directory in directories]
        return {self.file(path, runs=runs) for path in paths} - {None}

    def file(self, path: Path, *, runs: bool) -> object:
        """Keep a file of the workspace. Return what is the same for each of its names; None: there is no such file."""
        copy = self._copies / str(len(self.scripts)) if self._copies is not None and runs else None
        try:
            place = Place.inside(self._workspace, str(path))
            if place.parts in self.scripts:
                return place.parts
            is_full = len(self.scripts) == MAX_SCRIPTS
            stamp = content_stamp(place, None if is_full else copy)
        except ToolFailure:  # a directory, or outside the workspace
            return _system_file(self._workspace / path)
        if stamp is None:
            return None
        self.is_full = self.is_full or is_full
        if not is_full:
            self.scripts[place.parts] = Script(place, stamp, runs, copy if copy is not None and copy.exists() else None)
        return place.parts

    def hides_text(self) -> bool:
        """Tell whether some of what may run can't be shown: it is too large, or no text."""
        if self._copies is None:
            return False
        return any(script.runs and _text(script).startswith(_HIDDEN) for script in self.scripts.values())

    def only_sets_variables(self, sourced: _NamedPaths) -> bool:
        """Tell whether what the copy of a sourced file says changes nothing about which files the line runs."""
        path = str(sourced.directory / (sourced.script or ""))
        try:
            script = self.scripts.get(Place.inside(self._workspace, path).parts)
        except ToolFailure:
            return False
        commands = None if script is None else read_command(_text(script))
        if not isinstance(commands, Commands) or commands.doubts:
            return False
        return all(not each.words or each.words[0].text == "export" for each in commands.simple)


def _system_file(path: Path) -> str | None:
    """Return the real place of a file where no agent writes, of those that a command sees; None: it is no such file."""
    real = os.path.realpath(path)
    shared = ("/dev/", "/proc/", "/tmp/", "/var/tmp/", f"{os.path.realpath(tempfile.gettempdir())}/")  # noqa: S108
    return real if os.path.isfile(real) and not real.startswith(shared) else None  # noqa: PTH113 - as realpath


def _text(script: Script) -> str:
    """Return what a script says, whatever bytes it has: a shell runs a line although a later one is no text."""
    if script.copy is None or script.copy.stat().st_size > MAX_TEXT_BYTES:
        return "(not shown: too large)"
    content = script.copy.read_bytes()
    if content.startswith(_PROGRAM):
        return "(not shown: a program, which is no text)"
    return content.decode(errors="replace").replace("\0", "\N{SYMBOL FOR NULL}")


def _read(command: str, workspace: Path) -> _CommandPaths:
    """Read what a command names, and which directories it enters."""
    commands, top = read_command(command), Path()
    if isinstance(commands, Unparsable):
        return _CommandPaths([_any_word(command)], [top], doubtful=True)
    doubts = set(commands.doubts).difference(map(doubt_of_unread, _SOURCING))  # what is sourced is read here
    namings = [_any_word(command)] if doubts else []
    directories, here, entering = [top], top, list[SimpleCommand]()
    for simple in commands.simple:
        if _enters(simple):
            entering.append(simple)
            paths = _all_paths(word.text or "" for word in simple.own_words[1:])
            directories += [start / path for path in paths for start in (here, top)]
            here = here / paths[0] if paths else here
        namings += _named_by(simple, here, workspace)
    unclear = not _is_plain(command, commands, entering) and not all(naming.runs_none for naming in namings)
    directories = list(dict.fromkeys(directories))[:_MOST_DIRECTORIES]
    return _CommandPaths(namings, directories, bool(doubts) or unclear)


def _any_word(command: str) -> _NamedPaths:
    return _NamedPaths(Path(), _all_paths(word.strip("'\"`();|&<>") for word in command.split()))


def _is_plain(command: str, commands: Commands, entering: list[SimpleCommand]) -> bool:
    """Tell whether it is certain in which directory each part of a command runs."""
    if any(simple.guessed for simple in commands.simple):
        return False
    texts = [command, *(word.text or "" for simple in commands.simple for word in simple.words)]
    is_once = len(entering) == 1 and not any(map(_AGAIN.search, texts))
    return not entering or (is_once and _is_plain_cd(entering[0]))


def _enters(command: SimpleCommand) -> bool:
    """Tell whether a command changes its directory, or that of what it runs."""
    name = Path(command.words[0].text or "").name if command.words else ""
    if name in _ENTERING:
        return True
    runs_others = command.passed > 0 or name in _RUN_FILES or name == "find"
    return runs_others and any(_ENTERING_OPTION.match(word.text or "") for word in command.own_words[1:])


def _is_plain_cd(command: SimpleCommand) -> bool:
    program, *operands = [word.text for word in command.words]
    if program != "cd" or len(operands) != 1:
        return False
    names = (operands[0] or "").removeprefix("./").removeprefix("/").removesuffix("/").split("/")
    return all(_PLAIN_NAME.fullmatch(each) for each in names)


def _named_by(command: SimpleCommand, directory: Path, workspace: Path) -> Iterator[_NamedPaths]:
    if not command.words:
        return
    program = command.words[0].text or ""
    name = posixpath.basename(program)  # not Path.name: that of "." is empty
    if "/" in program:
        yield _NamedPaths(directory, [program, name], script=program)
    elif (on_path := _on_path(program, workspace)) is not None:
        yield _NamedPaths(directory, [on_path], script=on_path)
    name = interpreter(name) or name
    if name not in _RUN_FILES and interpreter(name) is None:
        return
    texts = [word.text or "" for word in command.words[1:]]
    module = _module_of(texts) if name == "python" else None
    if module is None:
        yield _given_to(name, texts, directory)
    else:
        yield from _of_module(*module, directory)


def _on_path(program: str, workspace: Path) -> str | None:
    """Return the file of the workspace that the PATH leads to; None: it leads elsewhere, or to what the worker runs from."""
    path = os.pathsep.join(str(workspace / each) for each in os.get_exec_path())
    file = Path(shutil.which(program, path=path) or "/")
    place = Path(os.path.realpath(file.parent), file.name)
    in_workspace = place.is_relative_to(os.path.realpath(workspace)) and not LOADED_FILES.holds(place)
    return str(place) if in_workspace else None


def _given_to(name: str, texts: list[str], directory: Path) -> _NamedPaths:
    """Return what the arguments of a shell, an interpreter or the like name."""
    paths = _all_paths(texts)
    while texts and name in _FLAGS and _FLAGS[name].fullmatch(texts[0]):
        texts = texts[1:]
    first = texts[0] if texts else ""
    if name in SHELLS and _CODE.fullmatch(first):
        return _NamedPaths(directory, paths, runs_none=True)
    if first and name in _RUN_THE_FIRST and first not in _WORDS and not first.startswith(("-", "+")):
        return _NamedPaths(directory, [first, *paths], script=first, is_sourced=name in _SOURCING)
    most = -1 if name in _SOURCING else int(name in _RUN_FILES - SHELLS)
    return _NamedPaths(directory, paths, most=most)


def _module_of(texts: list[str]) -> tuple[str, list[str]] | None:
    """Return the module that Python runs, and what that is given; None: it runs none."""
    for at, text in enumerate(texts):
        if (match := _MODULE.fullmatch(text)) is not None:
            named = [each for each in (match.group(1), *texts[at + 1 :]) if each]
            return (named[0], named[1:]) if named else None
        if not text.startswith("-"):
            return None
    return None


def _of_module(name: str, arguments: list[str], directory: Path) -> Iterator[_NamedPaths]:
    """Return the files that a module is, if it is one of the workspace, and what it is given; some run that.

    Of a module of the workspace it is never certain what runs: Python may take a compiled file in place of its text.
    """
    runs_given = name in _RUN_THEIR_FILE
    yield _NamedPaths(directory, _all_paths(arguments), most=int(runs_given), runs_none=not runs_given)
    path, *above = [*itertools.accumulate(name.split("."), "{}/{}".format)][::-1]
    files = [f"{path}.py", f"{path}/__main__.py", *(f"{each}/__init__.py" for each in (path, *above))]
    yield _NamedPaths(directory, files)


def _all_paths(words: Iterable[str]) -> list[str]:
    return [path for word in words for path in _paths_in(word)]


def _paths_in(word: str) -> list[str]:
    """Return the paths that a word may be: the value of an option, too, and what has the name where that is another place."""
    value = word
    if word.startswith("-"):
        value = word.partition("=")[2] or ("" if word.startswith("--") else word[2:])
    return [path for path in dict.fromkeys((value, Path(value).name)) if path]
