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
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import all_suffixes
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
MAX_LOOK_SECONDS: Final = 1.0
"""Of the processor's time, for looking which paths are files; what is in them is bounded by their number and size."""
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
_PROGRAM: Final = b"\x7fELF"
_MODULE: Final = re.compile(r"-[bBdEhiIOPqsSuvVx?R]*m(.*)", re.DOTALL)
_VALUE_FOLLOWS: Final = re.compile(r"-[bBdEhiIOPqsSuvVx?R]*[WXQ]|--check-hash-based-pycs")
_SUFFIXES: Final = tuple(
    dict.fromkeys(
        each.replace(f"-3{sys.version_info.minor}", f"-3{minor}") for each in all_suffixes() for minor in range(8, 16)
    )
)
"""Of what Python imports: the command's may be another version than the worker's."""
_MOST_PARTS: Final = 20
"""Of a module's name; and the most words that may be one."""
_ADDED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("node", "bun", "tsx", "ts-node"), (".js", ".cjs", ".mjs", ".json", ".node", ".ts", ".tsx", "/index.js")
    ),
    "perl": (".pm",),
    "ruby": (".rb", ".so"),
    "lua": (".lua",),
}
"""What an interpreter adds to a name to find its file."""
ADDED: Final = sorted({ending for endings in _ADDED.values() for ending in endings})
_LOADING: Final = {
    "node": re.compile(r"-\w*r|--(?:require|import|loader|experimental-loader)"),
    "perl": re.compile(r"-[a-ln-zA-LN-Z]*I|-[mM]-?b?lib"),
    "ruby": re.compile(r"-[a-qs-zA-Z]*I"),
    "lua": re.compile(r"-\w*l"),
    "php": re.compile(r"-\w*[cd]"),
}
"""How options begin that load files which no word names."""
_RUN_THEIR_FILE: Final = frozenset({"pdb", "cProfile", "profile", "trace", "runpy", "coverage"})
_MOST_DIRECTORIES: Final = 20

Names = tuple[str, ...]


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
        """Return what the copies of those that may run say, each below its name. Only lines that name one aren't indented."""
        return "".join(f"\n\n--- {_quoted(each)}\n{indented(_text(each))}" for each in self.files if each.runs)


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

    Looks at the disk: at most ``MAX_SCRIPTS`` files and ``MAX_LOOK_SECONDS``. ``copies``: a directory in which those that may
    run are copied, unless they are too large.
    """
    commands, looks = read_command(command), _Looks(workspace, copies)
    reading = _read(command, commands, looks)
    certain, running, sourced = not reading.doubtful, 0, set[Names]()
    for naming in reading.namings:
        present = looks.files(naming, reading.directories, runs=True)
        if naming.script is None:
            certain = certain and len(present) <= naming.most
        else:
            certain = certain and present == {looks.file(naming.directory / naming.script, runs=True)}
        running += bool(present)
        sourced |= present if naming.is_sourced else set()
    certain = certain and looks.has_only_text()
    if running > 1:  # what is sourced may change which ones the others are
        certain = certain and all(map(looks.only_sets_variables, sourced))
    for naming in reading.namings:
        looks.files(naming, reading.directories, runs=False)
    return Scripts(list(looks.scripts.values()), certain and not looks.is_full)


class _Looks:
    """What was found in the workspace so far. ``is_full``: there may be more, for which no one looks."""

    def __init__(self, workspace: Path, copies: Path | None) -> None:
        self.scripts: dict[Names, Script] = {}
        self.is_full = False
        self._workspace, self._copies = workspace, copies
        self._until = time.thread_time() + MAX_LOOK_SECONDS

    def files(self, naming: _NamedPaths, directories: list[Path], *, runs: bool) -> set[Names]:
        """Look for those paths of a program that it may run, or for the others; return which files there are."""
        paths = (directory / path for path in naming.paths if naming.runs(path) is runs for directory in directories)
        files = (self.file(path, runs=runs) for path in itertools.takewhile(self._may_look, paths))
        return {file for file in files if file is not None}

    def file(self, path: Path, *, runs: bool) -> Names | None:
        """Keep a file of the workspace. Return what is the same for each of its names; None: there is no such file."""
        if not self._may_look() or not os.path.isfile(self._workspace / path):  # noqa: PTH113 - no error for what is no path
            return None
        copy = self._copies / str(len(self.scripts)) if self._copies is not None and runs else None
        try:
            place = Place.inside(self._workspace, str(path))
            if place.parts in self.scripts:
                return place.parts
            self.is_full = len(self.scripts) == MAX_SCRIPTS
            started = time.thread_time()
            stamp = None if self.is_full else content_stamp(place, copy)
            self._until += time.thread_time() - started
        except ToolFailure:  # outside the workspace
            return _system_file(self._workspace / path)
        if stamp is None:
            return None
        self.scripts[place.parts] = Script(place, stamp, runs, copy if copy is not None and copy.exists() else None)
        return place.parts

    def on_path(self, program: str) -> str | None:
        """Return the file of the workspace that the PATH leads to; None: it leads elsewhere, or to what the worker runs from."""
        if not self._may_look():
            return None
        path = os.pathsep.join(str(self._workspace / each) for each in os.get_exec_path())
        file = Path(shutil.which(program, path=path) or "/")
        place = Path(os.path.realpath(file.parent), file.name)
        in_workspace = place.is_relative_to(os.path.realpath(self._workspace)) and not LOADED_FILES.holds(place)
        return str(place) if in_workspace else None

    def _may_look(self, _path: object = None) -> bool:
        self.is_full = self.is_full or time.thread_time() > self._until
        return not self.is_full

    def has_only_text(self) -> bool:
        """Tell whether all that may run can be shown as what it is: it is text, and not too large."""
        return self._copies is None or all(_is_text(script) for script in self.scripts.values() if script.runs)

    def only_sets_variables(self, sourced: Names) -> bool:
        """Tell whether what the copy of a sourced file says changes nothing about which files the line runs."""
        script = self.scripts.get(sourced)
        commands = None if script is None else read_command(_text(script))
        if not isinstance(commands, Commands) or commands.doubts:
            return False
        return all(not each.words or each.words[0].text == "export" for each in commands.simple)


def _system_file(path: Path) -> Names | None:
    """Return the real place of a file where no agent writes, of those that a command sees; None: it is no such file."""
    real = os.path.realpath(path)
    shared = ("/dev/", "/proc/", "/tmp/", "/var/tmp/", f"{os.path.realpath(tempfile.gettempdir())}/")  # noqa: S108
    return (real,) if os.path.isfile(real) and not real.startswith(shared) else None  # noqa: PTH113 - as realpath


def _content(script: Script) -> bytes | None:
    """Return what a script holds; None: it is too large."""
    if script.copy is None or script.copy.stat().st_size > MAX_TEXT_BYTES:
        return None
    return script.copy.read_bytes()


def _text(script: Script) -> str:
    """Return what a script says, whatever bytes it has: a shell runs a line although a later one is no text."""
    content = _content(script)
    if content is None:
        return "(not shown: too large)"
    if content.startswith(_PROGRAM):
        return "(not shown: a program, which is no text)"
    return content.decode(errors="replace").replace("\0", "\N{SYMBOL FOR NULL}")


def _is_text(script: Script) -> bool:
    """Tell whether a script is what is shown of it. Python runs a program that is packed after lines of text."""
    content = _content(script)
    with suppress(UnicodeDecodeError):
        return content is not None and "\0" not in content.decode()
    return False


def indented(text: str) -> str:
    """Return a text of which no line looks like one that names a script."""
    return textwrap.indent(text, "    ", lambda _line: True)


def _quoted(script: Script) -> str:
    name = script.place.relative
    return name if name.isprintable() else ascii(name)


def _read(command: str, commands: Commands | Unparsable, looks: _Looks) -> _CommandPaths:
    """Read what a command names, and which directories it enters."""
    top = Path()
    if isinstance(commands, Unparsable):
        return _CommandPaths([_any_word(command)], [top], doubtful=True)
    doubts = set(commands.doubts).difference(map(doubt_of_unread, _SOURCING))  # what is sourced is read here
    namings = [_any_word(command)] if doubts else []
    directories, here, entering = [top], top, list[SimpleCommand]()
    for simple in commands.simple:
        if _enters(simple):
            entering.append(simple)
        if _enters(simple) and len(directories) < _MOST_DIRECTORIES:
            paths = _all_paths(word.text or "" for word in simple.own_words[1:])
            entered = [start / path for path in paths for start in (here, top)]
            directories = list(dict.fromkeys([*directories, *entered]))
            here = here / paths[0] if paths else here
        namings += _named_by(simple, here, looks)
    unclear = not _is_plain(command, commands, entering) and not all(naming.runs_none for naming in namings)
    return _CommandPaths(namings, directories[:_MOST_DIRECTORIES], bool(doubts) or unclear)


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


def _named_by(command: SimpleCommand, directory: Path, looks: _Looks) -> Iterator[_NamedPaths]:
    if not command.words:
        return
    program = command.words[0].text or ""
    name = posixpath.basename(program)  # not Path.name: that of "." is empty
    if "/" in program:
        yield _NamedPaths(directory, [program, name], script=program)
    elif (on_path := looks.on_path(program)) is not None:
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


def _given_to(name: str, texts: list[str], directory: Path) -> _NamedPaths:
    """Return what the arguments of a shell, an interpreter or the like name."""
    paths = _all_paths(texts, _ADDED.get(name, ()))
    loads = name in _LOADING and any(map(_LOADING[name].match, texts))
    while texts and name in _FLAGS and _FLAGS[name].fullmatch(texts[0]):
        texts = texts[1:]
    first = texts[0] if texts else ""
    if name in SHELLS and _CODE.fullmatch(first):
        return _NamedPaths(directory, paths, runs_none=True)
    if first and name in _RUN_THE_FIRST and first not in _WORDS and not first.startswith(("-", "+")):
        return _NamedPaths(directory, [first, *paths], script=first, is_sourced=name in _SOURCING)
    most = -1 if name in _SOURCING or loads else int(name in _RUN_FILES - SHELLS)
    return _NamedPaths(directory, paths, most=most)


def _module_of(texts: list[str]) -> tuple[str, list[str]] | None:
    """Return the module that Python runs, and what that is given; None: it runs none."""
    is_value = False
    for at, text in enumerate(texts):
        if not is_value and (match := _MODULE.fullmatch(text)) is not None:
            name, *arguments = [match[1]] * bool(match[1]) + texts[at + 1 :] or [""]
            return name, arguments
        if not is_value and not text.startswith("-"):
            return None
        is_value = not is_value and _VALUE_FOLLOWS.fullmatch(text) is not None
    return None


def _of_module(name: str, arguments: list[str], directory: Path) -> Iterator[_NamedPaths]:
    """Return the files that a module is, if it is one of the workspace, and what it is given; some run that, as a module too.

    Of a module of the workspace it is never certain what runs: Python may take a compiled file in place of its text.
    """
    runs_given = name in _RUN_THEIR_FILE
    yield _NamedPaths(directory, _all_paths(arguments), most=int(runs_given), runs_none=not runs_given)
    modules = [name, *(arguments if runs_given else ())]
    for module in modules[:_MOST_PARTS]:
        is_whole = module and module.count(".") < _MOST_PARTS and len(modules) <= _MOST_PARTS
        yield _NamedPaths(directory, files_of_module(module), most=0 if is_whole else -1)


def files_of_module(name: str) -> list[str]:
    """Return the files that Python may import or run under a module's name, and those of the packages that it is in."""
    paths = [*itertools.accumulate(name.split(".")[:_MOST_PARTS], "{}/{}".format)]
    stems = [*paths, *(f"{each}/__init__" for each in paths), f"{paths[-1]}/__main__"]
    return [f"{stem}{suffix}" for stem in stems for suffix in _SUFFIXES]


def _all_paths(words: Iterable[str], added: tuple[str, ...] = ()) -> list[str]:
    return [f"{path}{ending}" for word in words for path in _paths_in(word) for ending in ("", *added)]


def _paths_in(word: str) -> list[str]:
    """Return the paths that a word may be: the value of an option, too, and what has the name where that is another place."""
    value = word
    if word.startswith("-"):
        value = word.partition("=")[2] or ("" if word.startswith("--") else word[2:])
    return [path for path in dict.fromkeys((value, Path(value).name)) if path]
