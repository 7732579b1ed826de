"""Where an MCP server is: a command to start, or an address. Plain values; works without the ``mcp`` package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from turngate.domain.errors import ConfigurationError
from turngate.policies.shell.programs import SHELLS, interpreter


@dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A server that is started as a child process and spoken to over its stdin and stdout.

    ``command``: the program and its arguments, as a list: no shell reads it. ``env``: what it needs besides ``PATH``,
    the locale and the like; nothing else of the worker's environment reaches it.

    It runs confined: it reads the system's programs, and otherwise what is declared here. ``cwd``: an existing directory
    that it starts in, and may change; None is an empty one of its own. ``readable``, ``writable``: more files and
    directories. ``network``: whether it may reach other machines; never this one's own addresses.
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
        """The files that it runs from, as far as they exist: its program, and the script or module of an interpreter.

        Of a link, which can't be held itself, the directory that it lies in, and what it leads to.
        """
        program, *arguments = self.command
        path = {**os.environ, **self.env}.get("PATH")
        files = self._files([shutil.which(program, path=path) or program])
        if "-m" in arguments[:-1]:
            module = arguments[arguments.index("-m") + 1].replace(".", "/")
            files += self._files([f"{module}.py", f"{module}/__init__.py", f"{module}/__main__.py"])
        elif Path(program).name in SHELLS or interpreter(Path(program).name) is not None:
            files += self._files(arguments)[:1]
        return tuple(part for file in files for part in self._parts(file))

    def _files(self, words: Sequence[str]) -> list[Path]:
        paths = (Path(self.cwd or "/", word) for word in words)
        return [path for path in paths if path.is_file()]

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
