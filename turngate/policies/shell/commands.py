"""Collects what a command line runs: each simple command, and what it runs in turn."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from turngate.domain.policy.command_line import Commands, SimpleCommand, Word
from turngate.policies.shell.builtins import RESERVED, changes_programs, is_by_process, run_builtin
from turngate.policies.shell.git import run_git
from turngate.policies.shell.options import names
from turngate.policies.shell.programs import (
    SHELLS,
    interpreter,
    run_awk,
    run_interpreter,
    run_pwsh,
    run_runtime,
    run_sed,
    run_shell,
    run_with_options,
)
from turngate.policies.shell.words import UnreadableError
from turngate.policies.shell.wrappers import WRAPPERS, Runs, unwrap, unwrap_find, unwrap_xargs

MAX_WRAPPERS = 10
MAX_GUESSED_WORDS = 30
MAX_SIMPLE_COMMANDS = 5_000
_EXPANSION = re.compile(r"\"?\$(?:[A-Za-z0-9_@*]+|[({].*)\"?", re.DOTALL)
"""A word that is nothing but an expansion: ``"$PWD":/src`` is not."""

_CARRIERS = names(
    "docker podman nerdctl kubectl oc npx bunx uvx pipx strace ltrace gdb systemd-run machinectl runuser su ssh unshare "
    "nsenter taskset chrt numactl fakeroot valgrind perf expect unbuffer rlwrap socat nc ncat setarch prlimit firejail "
    "bwrap proot pkexec run0 dbus-run-session xvfb-run uv poetry pipenv hatch conda nix nix-shell direnv wine hyperfine "
    "npm yarn pnpm bun bundle cmake setpriv linux32 linux64 start-stop-daemon daemonize cgexec"
)
"""Programs that run a command somewhere in their arguments; where it begins is guessed, for deny and ask rules."""

_MANAGERS = names(
    "docker podman nerdctl kubectl oc npx bunx uvx pipx uv poetry pipenv hatch conda npm yarn pnpm bun bundle cmake ssh"
)
"""Those of them whose arguments are often files and values: only the word that may be the command is looked at."""

_SUBCOMMANDS = frozenset({"run", "exec", "x", "dlx", "tool"})

_UNKNOWABLE = names(
    "parallel script tmux screen at batch crontab entr socat expect sg capsh gdb lldb vim vi nvim view ex ed emacs"
)
"""Programs that also take commands from their input or a session: no allow rule can say what they do."""

_RUNS_INPUT = names(
    "bc dc ftp ghci gnuplot iex irb jshell lftp m4 make gmake mariadb mongosh mysql octave psql R redis-cli sftp sqlite3"
)
"""Programs that may run what they read, where the line gives them something to read."""


class TooDeepError(Exception):
    """Commands wrap commands beyond what is followed. The message is part of a sentence."""


ReadText = Callable[[str, "Collected", int], None]
"""Reads a command line into what is collected; the number counts the wrappers around it."""


@dataclass(slots=True)
class Collected:
    """What has been found so far. ``guessing``: inside a guess, where further guesses would multiply.

    ``stdin``: where the commands that are read now get their input from, as part of a sentence; None: from nothing in the line.
    """

    simple: list[SimpleCommand] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    background: bool = False
    guessing: bool = False
    stdin: str | None = None

    def add(self, command: SimpleCommand) -> None:
        """Note one command."""
        if len(self.simple) >= MAX_SIMPLE_COMMANDS:
            raise TooDeepError(f"it runs more than {MAX_SIMPLE_COMMANDS} commands")
        self.simple.append(command)

    def doubt(self, reason: str) -> None:
        """Note why there may be more than was found."""
        if reason not in self.doubts[-1:]:
            self.doubts.append(reason)

    def assigns(self, names: Sequence[str]) -> None:
        """Note variables that are set; some make every later word doubtful."""
        for name in names:
            if changes_programs(name):
                self.doubt(f"setting {name!r} may change what programs do")

    def commands(self) -> Commands:
        """Return it all as a value."""
        return Commands(
            simple=tuple(self.simple),
            doubts=tuple(self.doubts),
            writes=tuple(self.writes),
            background=self.background,
        )


def collect(
    words: Sequence[Word], assigns: tuple[str, ...], collected: Collected, wrappers: int, read_text: ReadText
) -> None:
    """Note a command and everything it runs.

    Raises:
        UnreadableError, TooDeepError: the whole line must not be believed.
    """
    collected.assigns(assigns)
    if not words:
        collected.add(SimpleCommand(words=(), assigns=assigns))
        return
    program = words[0].text
    if program is None:
        collected.doubt(f"which program {words[0].raw!r} is, only bash can know")
        return
    if program in RESERVED:
        raise UnreadableError(f"{program!r} is in a place where policy cannot judge it")
    name = posixpath.basename(program)
    runs = _runs(name, words[1:])
    place = len(collected.simple)
    _doubt_program(program, collected)
    if runs.opaque is None and name in _RUNS_INPUT and collected.stdin is not None:
        runs.opaque = f"may run what it reads from {collected.stdin}"
    collected.add(
        SimpleCommand(
            words=tuple(words),
            assigns=assigns,
            opaque=runs.opaque,
            named=frozenset(runs.named),
            stdin=collected.stdin,
            passed=runs.passed,
        )
    )
    outer = collected.stdin
    if name == "xargs" and not _keeps_input(words[1:]):
        collected.stdin = None  # what xargs starts reads from /dev/null
    _follow(runs, collected, wrappers, read_text)
    collected.stdin = outer
    if (name in _CARRIERS | _UNKNOWABLE or name.startswith(("ld-", "ld.so"))) and not collected.guessing:
        opaque = _guess(name, words[1:], collected, read_text)
        if opaque is not None:
            collected.simple[place] = replace(collected.simple[place], opaque=opaque)


def _doubt_program(program: str, collected: Collected) -> None:
    if not program.isascii() or not program.isprintable() or not program:
        collected.doubt(f"the program's name {program!r} is not plain ASCII")
    if is_by_process(program):
        collected.doubt(f"{program!r} may be any program, a shell too")
    if program == "exec" and collected.stdin is not None:
        collected.doubt("'exec' changes what later commands read")


def _keeps_input(args: Sequence[Word]) -> bool:
    """Tell whether ``xargs`` may hand its own input to what it starts: with ``--arg-file`` it does not need it."""
    return any(
        word.text is None or word.text.startswith(("--a", "--o")) or _is_bundle_with_a(word.text) for word in args
    )


def _is_bundle_with_a(text: str) -> bool:
    return text.startswith("-") and not text.startswith("--") and not {"a", "o"}.isdisjoint(text)


def _follow(runs: Runs, collected: Collected, wrappers: int, read_text: ReadText) -> None:
    for doubt in runs.doubts:
        collected.doubt(doubt)
    for inner, set_for_it in runs.commands:
        if wrappers >= MAX_WRAPPERS:
            raise TooDeepError(f"it wraps commands more than {MAX_WRAPPERS} times")
        collect(inner, set_for_it, collected, wrappers + 1, read_text)
    for text in runs.texts:
        read_text(text, collected, wrappers + 1)


_LOOKED_AT: dict[str, Callable[[Sequence[Word]], Runs]] = {
    "xargs": unwrap_xargs,
    "find": unwrap_find,
    "git": run_git,
    **{name: partial(run_runtime, name) for name in ("bun", "deno")},
    **dict.fromkeys(("pwsh", "pwsh.exe", "powershell", "powershell.exe"), run_pwsh),
    **{name: partial(run_awk, name) for name in ("awk", "gawk", "mawk", "nawk")},
    **{name: partial(run_sed, name) for name in ("sed", "gsed")},
    **{name: partial(run_shell, name) for name in SHELLS},
    **{name: partial(unwrap, name, wrapper) for name, wrapper in WRAPPERS.items()},
}


def _runs(name: str, args: Sequence[Word]) -> Runs:
    if name in _UNKNOWABLE:
        return Runs(doubts=[f"{name!r} takes commands from its input or a session"])
    if name == "ssh":
        return Runs(opaque="runs commands on another machine")
    if (builtin := run_builtin(name, args)) is not None:
        return builtin
    if name in _LOOKED_AT:
        return _LOOKED_AT[name](args)
    if (language := interpreter(name)) is not None:
        return run_interpreter(language, args)
    return run_with_options(name, args)


def _guess(name: str, args: Sequence[Word], outer: Collected, read_text: ReadText) -> str | None:
    """Note every command that may begin at some word. Return why the outer command is opaque, None when it is not."""
    if len(args) > MAX_GUESSED_WORDS:
        return f"has more than {MAX_GUESSED_WORDS} words, of which some may be a command"
    guessed = Collected(guessing=True)
    for at, word in enumerate(args):
        if word.text is None:
            if not word.prefix.startswith("-") and (name not in _MANAGERS or _may_begin(word, args[:at])):
                guessed.doubt(f"may run {word.raw!r}, which only bash can know")
            continue
        if word.text.startswith("-") or word.text == ".":  # a directory far more often than `source`
            continue
        try:
            collect(args[at:], (), guessed, 1, read_text)
            if any(char in word.text for char in " \t\n;|&<>$`"):
                read_text(word.text, guessed, 1)
        except (UnreadableError, TooDeepError):
            guessed.doubt(f"may run {word.raw!r}, which could not be read")
    for command in guessed.simple:
        outer.add(replace(command, guessed=True))
    return f"may run more: {guessed.doubts[0]}" if guessed.doubts else None


def _may_begin(word: Word, before: Sequence[Word]) -> bool:
    """Tell whether a word that only bash can know may be the command that a program of ``_MANAGERS`` runs.

    It is none after an operand, which is the command itself, unless that is a subcommand like ``run``.
    """
    if _EXPANSION.fullmatch(word.raw):
        return True
    texts = ["", *((each.text or "-") for each in before)]
    operands = [text for last, text in pairwise(texts) if not text.startswith("-") and not last.startswith("-")]
    return ":" not in word.raw and _SUBCOMMANDS.issuperset(operands)
