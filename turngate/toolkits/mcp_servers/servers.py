"""Where an MCP server is: a command to start, or an address. Plain values; works without the ``mcp`` package."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from turngate.domain.errors import ConfigurationError
from turngate.policies.shell.options import names
from turngate.policies.shell.programs import SHELLS, interpreter
from turngate.policies.shell.wrappers import WRAPPERS
from turngate.toolkits.scripts import ADDED, files_of_module

_STARTERS = (
    SHELLS
    | WRAPPERS.keys()
    | names("bun bunx deno npm npx pnpm yarn uv uvx pip pipx poetry pdm hatch pipenv conda mamba pixi rye")
)
"""Programs that may run what any of their words name."""
_BETWEEN_WORDS = re.compile(r"[\s'\"`();|&<>=,:]+")


@dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A server that is started as a child process and spoken to over its stdin and stdout.

    ``command``: the program and its arguments, as a list: no shell reads it. ``env``: what it needs besides ``PATH``,
    the locale and the like; nothing else of the worker's environment reaches it.

    It runs confined: it reads the system's programs, and otherwise what is declared here. ``cwd``: an existing directory
    that it starts in, and may change; None is an empty one of its own. ``readable``, ``writable``: more files and
    directories; a file that is in ``programs`` and that it changes has to be named itself. ``network``: whether it may reach
    other machines; never this one's own addresses.
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | str | None = None
    readable: Sequence[Path | str] = ()
    writable: Sequence[Path | str] = ()
    network: bool = False

    def __post_init__(self) -> None:
        """Refuse a command that is one string, or empty, and a directory that is not there."""
        if isinstance(self.command, str) or not self.command or not self.command[0]:
            raise ConfigurationError(
                f"an MCP server's command is a list, such as ['npx', '-y', 'some-server'], not {self.command!r}"
            )
        if self.cwd is not None and not Path(self.cwd).is_dir():
            raise ConfigurationError(f"an MCP server's cwd must be an existing directory, which {self.cwd} is not")

    @property
    def changeable(self) -> tuple[Path, ...]:
        """What it may change on this machine, without links."""
        return tuple(Path(each).expanduser().resolve() for each in (self.cwd, *self.writable) if each is not None)

    @property
    def programs(self) -> tuple[Path, ...]:
        """The files that it runs from, as far as they exist, but for those that ``writable`` names itself.

        Its program, and of an interpreter, a shell or what starts others, each file and module that any of its words names:
        which of them run isn't known. Of a link, which can't be held itself, the directory that it lies in, and what it leads to.
        """
        path = {**os.environ, **self.env}.get("PATH")
        paths = dict.fromkeys(Path(self.cwd or "/", shutil.which(word, path=path) or word) for word in self._words())
        files = [each for each in paths if os.path.isfile(each) and each.resolve() not in self.changeable]  # noqa: PTH113 - a text can be too long
        return tuple(part for file in files for part in self._parts(file))

    def _words(self) -> list[str]:
        """Return its program, and what may name a file among its words, if the program may run that."""
        name = Path(self.command[0]).name
        if name not in _STARTERS and interpreter(name) is None:
            return [self.command[0]]
        words = [part for word in self.command for part in (word, *_BETWEEN_WORDS.split(word)) if part]
        return [*words, *(file for word in words for file in (*files_of_module(word), *map(word.__add__, ADDED)))]

    def _parts(self, file: Path) -> Iterator[Path]:
        while file.is_symlink() and file.parent.resolve() not in self.changeable:
            yield file.parent
            file = Path(os.path.normpath(file.parent.resolve() / file.readlink()))
        yield file

    @property
    def label(self) -> str:
        """The program alone: arguments may hold secrets."""
        return self.command[0]


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    """A server that speaks streamable HTTP at an address. ``headers``: sent with each request, such as Authorization."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    changeable: ClassVar[tuple[Path, ...]] = ()
    programs: ClassVar[tuple[Path, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse what is no http address."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"an MCP server's url begins with http:// or https://, which {self.label!r} does not"
            )

    @property
    def label(self) -> str:
        """The address without user, password and query: they may hold secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


Server = StdioServer | HttpServer
