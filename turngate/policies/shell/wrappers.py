"""Programs that run the command in their own arguments, like ``env``, ``sudo`` and ``xargs``.

A table of their options (from their manual pages: GNU coreutils, util-linux, sudo, findutils), and how the rest is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from turngate.domain.policy.command_line import Word, unknown
from turngate.policies.shell.options import Options, OptionTable, names, read_options

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=", re.DOTALL)


@dataclass(slots=True)
class Runs:
    """What a command runs besides itself.

    ``commands``: words of commands, with the variables set for them. ``texts``: command lines. ``doubts``: why there may
    be others. ``opaque``: why its own words do not say what it does. ``named``: words that an allow rule has to name itself.
    ``passed``: how many of the last words are among ``commands``.
    """

    commands: list[tuple[list[Word], tuple[str, ...]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    opaque: str | None = None
    named: list[str] = field(default_factory=list)
    passed: int = 0


_NO_OPTIONS = OptionTable()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrapper:
    """How a program takes the command. ``operands``: its own, in front of it. ``assigns``: it sets variables for it.

    ``queries``: options with which it runs nothing. ``shell_flag``: an option whose value is a command line. ``joined``: the
    words are joined and given to a shell, unless one of ``not_joined`` is given.
    """

    options: OptionTable = _NO_OPTIONS
    operands: int = 0
    assigns: bool = False
    queries: frozenset[str] = frozenset()
    shell_flag: frozenset[str] = frozenset()
    joined: bool = False
    not_joined: frozenset[str] = frozenset()


def _options(flags: str = "", valued: str = "", long_flags: str = "", long_valued: str = "") -> OptionTable:
    return OptionTable(flags=flags, valued=valued, long_flags=names(long_flags), long_valued=names(long_valued))


WRAPPERS: dict[str, Wrapper] = {
    "env": Wrapper(
        options=_options("i0v", "uC", "--ignore-environment --null --debug", "--unset --chdir"), assigns=True
    ),
    "sudo": Wrapper(
        options=_options(
            "AbBEHkKnNPSvlV",
            "ugpChrtTUDRa",
            "--askpass --background --preserve-env --set-home --non-interactive --stdin --list --validate --version",
            "--user --group --prompt --host --chdir --chroot --role --type --close-from --command-timeout --other-user",
        ),
        assigns=True,
        queries=names("-l -v -V -K --list --validate --version"),
    ),
    "doas": Wrapper(options=_options("nL", "uCa"), queries=names("-L -C")),
    "nohup": Wrapper(),
    "setsid": Wrapper(options=_options("cfw", "", "--ctty --fork --wait")),
    "nice": Wrapper(options=_options("0123456789", "n", "", "--adjustment")),
    "ionice": Wrapper(
        options=_options("t", "cnpPu", "--ignore", "--class --classdata --pid --pgid --uid"), queries=names("-p -P -u")
    ),
    "timeout": Wrapper(
        options=_options("vfp", "sk", "--verbose --foreground --preserve-status", "--signal --kill-after"), operands=1
    ),
    "stdbuf": Wrapper(options=_options("", "ioe", "", "--input --output --error")),
    "time": Wrapper(options=_options("p"), assigns=True),  # the keyword; /usr/bin/time takes more
    "command": Wrapper(options=_options("pvV"), queries=names("-v -V")),
    "builtin": Wrapper(),
    "exec": Wrapper(options=_options("cl", "a")),
    "chroot": Wrapper(options=_options("", "", "--skip-chdir", "--userspec --groups"), operands=1),
    "flock": Wrapper(
        options=_options(
            "sxeunoFv",
            "wEc",
            "--shared --exclusive --unlock --nonblock --nb --close --no-fork --verbose",
            "--timeout --wait --conflict-exit-code --command",
        ),
        operands=1,
        shell_flag=names("-c --command"),
    ),
    "watch": Wrapper(
        options=_options(
            "bcdegptxw", "nq", "--beep --color --errexit --chgexit --no-title --precise --exec --no-wrap", "--interval"
        ),
        joined=True,
        not_joined=names("-x --exec"),
    ),
    "busybox": Wrapper(),
    "toybox": Wrapper(),
}
"""Programs that are themselves and one other command. An option that is not in the table makes the line doubtful."""


def unwrap(program: str, wrapper: Wrapper, args: Sequence[Word]) -> Runs:
    """Return what a wrapper of the table runs."""
    runs = Runs()
    options = read_options(args, wrapper.options)
    if options.problem is not None:
        runs.doubts.append(f"what {program!r} runs: {options.problem}")
        return runs
    if options.has(*wrapper.queries):
        return runs
    for value in options.values(*wrapper.shell_flag):
        _add_text(runs, program, [value])
    rest = _after_operands(program, wrapper, options, runs)
    assigns = _assigned_first(program, rest) if wrapper.assigns else []
    rest = rest[len(assigns) :]
    if program != "env" and any(not _PLAIN_NAME.fullmatch(name) for name in assigns):
        runs.doubts.append(f"whether {program!r} takes a word with '=' for an assignment is not known")
    if program == "env" and rest and rest[0].text == "-":
        rest = rest[1:]
    if rest and wrapper.joined and not options.has(*wrapper.not_joined):
        _add_text(runs, program, rest)
    elif rest:
        runs.commands.append((rest, tuple(assigns)))
        runs.passed = len(rest)
    return runs


def _after_operands(program: str, wrapper: Wrapper, options: Options, runs: Runs) -> list[Word]:
    """Return the command's words: those after the wrapper's own operands."""
    own, rest = options.rest[: wrapper.operands], options.rest[wrapper.operands :]
    if any(word.text is None and word.many for word in own):
        runs.doubts.append(f"what {program!r} runs: an operand in front of it may be several words")
    if len(rest) > 1 and rest[0].text in wrapper.shell_flag:
        _add_text(runs, program, rest[1:2])  # flock FILE -c 'command line'
        return []
    return rest


def _assigned_first(program: str, words: Sequence[Word]) -> list[str]:
    """Return the variables that the first words set."""
    assigned: list[str] = []
    for word in words:
        name = _assigned(program, word)
        if name is None:
            break
        assigned.append(name)
    return assigned


def _assigned(program: str, word: Word) -> str | None:
    """Return the variable that a word sets, or None.

    ``time`` is syntax: a quoted assignment after it is a program's name. For ``env`` it is still an assignment, and so is
    every word with ``=`` in it, whatever the name (env(1): ``env 1=2 rm`` runs ``rm``). ``sudo`` passes such words on, too.
    """
    if program == "time":
        written = ASSIGNMENT.match(word.raw)
        return None if written is None else written.group(1)
    name, equals, _ = (word.prefix if word.text is None else word.text).partition("=")
    return name if equals else None


def _add_text(runs: Runs, program: str, words: Sequence[Word]) -> None:
    known = [word.text for word in words if word.text is not None]
    if len(known) == len(words):
        runs.texts.append(" ".join(known))
    else:
        runs.doubts.append(f"what {program!r} runs holds what only bash can know")


_XARGS = OptionTable(
    flags="0oprtx",
    valued="adEILnPs",
    optional="eil",
    long_flags=names("--null --no-run-if-empty --interactive --verbose --exit --open-tty"),
    long_valued=names("--arg-file --delimiter --max-args --max-procs --max-chars --process-slot-var"),
)


def unwrap_xargs(args: Sequence[Word]) -> Runs:
    """Return what ``xargs`` runs: its command with further words from its input, or with some replaced by them."""
    runs = Runs()
    options = read_options(args, _XARGS)
    if options.problem is not None:
        runs.doubts.append(f"what 'xargs' runs: {options.problem}")
        return runs
    marks = [value.text for value in options.values("-I", "-i")] + (["{}"] if ("-i", None) in options.pairs else [])
    if not options.rest:
        return runs
    if None in marks or "" in marks or len(marks) > 1:
        runs.doubts.append("what 'xargs' runs: which of its words it replaces is not known")
        return runs
    replaced = [_replaced(word, [mark for mark in marks if mark]) for word in options.rest]
    runs.commands.append(([*replaced, unknown("…from its input")], ()))
    runs.passed = len(replaced)
    return runs


def _replaced(word: Word, marks: Sequence[str]) -> Word:
    if word.text is None:
        return word
    places = [word.text.index(mark) for mark in marks if mark in word.text]
    return Word(text=None, raw=f"…{word.raw}", prefix=word.text[: min(places)]) if places else word


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_CHANGES = re.compile(r"^-(?:delete|fls|fprint[0f]?)$", re.MULTILINE)


def unwrap_find(args: Sequence[Word]) -> Runs:
    """Return what ``find`` runs by ``-exec`` and the like; file names take the place of ``{}``."""
    runs = Runs(named=_FIND_CHANGES.findall("\n".join(word.text or "" for word in args)))
    inner: list[Word] | None = None
    for word in args:
        if word.may_be_option and word.text is None:
            runs.doubts.append(f"what 'find' runs: {word.raw!r} may be an action")
        if inner is None:
            inner = [] if word.text in _FIND_RUNS else None
        elif word.text == ";" or (word.text == "+" and inner and inner[-1].raw == "…{}"):
            runs.commands.append((inner, ()))
            inner = None
        else:
            inner.append(_replaced(word, ["{}"]))
    if inner is not None:
        runs.doubts.append("what 'find' runs has no end")
        runs.commands.append((inner, ()))
    runs.commands = [(words, assigns) for words, assigns in runs.commands if words]
    return runs
