"""Bash's own commands that change what later words mean, or run text that is given to them (bash(1), SHELL BUILTIN COMMANDS)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import OptionTable, names, read_options
from turngate.policies.shell.wrappers import ASSIGNMENT, Runs

RESERVED = names("! { } [[ ]] if then elif else fi case esac for select while until do done in function coproc")
"""As the first word of a command they are syntax. Where the tree takes one for a program, it read the text wrongly."""

_DANGEROUS = re.compile(
    r"PATH|IFS|ENV|HOME|SHELL|BASH_.*|BASHOPTS|SHELLOPTS|(?:LD|DYLD|GIT|RUSTC|LUA|PHP|SSH|SUDO)_?.*|GCONV_PATH|LOCPATH"
    r"|PYTHON(?:PATH|STARTUP|HOME|INSPECT|USERBASE|BREAKPOINT|WARNINGS|EXECUTABLE)|NODE_(?:OPTIONS|PATH|REPL.*)"
    r"|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|JAVA_.*|_JAVA_.*|JDK_.*|PROMPT_COMMAND|PS[0-4]|CDPATH|GLOBIGNORE|POSIXLY_CORRECT"
    r"|VISUAL|BROWSER|LESS.*|.*PAGER|.*EDITOR|.*OPTS|.*OPTIONS|.*FLAGS|.*_RSH|.*_COMMAND|.*_CMD|.*_PROXY|PIP_.*|UV_.*"
    r"|CARGO_.*|NPM_CONFIG_.*|YARN_.*|CC|CXX|LD|AR|EXINIT|VIMINIT|TERMINFO.*|XDG_.*|TAR_.*|RIPGREP_.*|MAN.*|AWK.*",
    re.IGNORECASE,
)
_SUBSTITUTION = re.compile(r"\$\(|`|\$\{")
_UNKNOWABLE = names(
    "source . alias enable bind complete compgen compopt fc mapfile readarray shopt hash let coproc history"
)
_JOBS = OptionTable(flags="lnprsx")
_LISTING = frozenset({"alias", "hash", "history"})
"""Without arguments they list what there is."""
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READING = frozenset({"read", "getopts", "unset", "wait"})
_EVALUATING = frozenset({"test", "[", "printf", "cd", "pushd", "kill"}) | _DECLARING | _READING
_SET_OPTIONS = re.compile(
    r"[-+][aeuxvCf]+|[-+][aeuxvCf]*o|pipefail|allexport|errexit|nounset|xtrace|noclobber|verbose|noglob"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HARMLESS_DECLARATION = re.compile(r"-[xrgp]+")


def changes_programs(variable: str) -> bool:
    """Tell whether setting a variable may change which program a later word starts, or what it runs."""
    return _DANGEROUS.fullmatch(variable) is not None


def is_by_process(path: str) -> bool:
    """Tell whether a program's path may be one by which a process names its own files: ``../../proc/self/exe`` is the shell."""
    return "/" in path and f"{posixpath.normpath(path)}/".lstrip("./").startswith(("proc/", "dev/fd/", "dev/std"))


def doubt_of_unread(program: str) -> str:
    """Return the doubt about a builtin that runs a file or text which is not read, such as ``source``."""
    return f"{program!r} changes what later commands are, or runs what is not read"


def run_builtin(program: str, args: Sequence[Word]) -> Runs | None:
    """Return what a builtin runs, or may; None when it is none that is looked at here."""
    if program == "eval":
        return _evaluated(args)
    if program == "trap":
        return _trapped(args)
    if program == "jobs":
        return _jobs(args)
    if program in _UNKNOWABLE:
        if program in _LISTING and not args:
            return Runs()
        return Runs(doubts=[doubt_of_unread(program)])
    if program == "set":
        plain = all(word.text is not None and _SET_OPTIONS.fullmatch(word.text) for word in args)
        if plain or args[0].text == "--":
            return Runs()
        return Runs(doubts=["'set' changes how the line is read"])
    if program in _EVALUATING:
        return _with_names(program, args)
    return None


def _evaluated(args: Sequence[Word]) -> Runs:
    known = [word.text for word in args if word.text is not None]
    if len(known) < len(args):
        return Runs(doubts=["'eval' runs what only bash can know"])
    return Runs(texts=[" ".join(known[1:] if known[:1] == ["--"] else known)])


def _trapped(args: Sequence[Word]) -> Runs:
    args = args[1:] if args and args[0].text == "--" else args
    if len(args) < 2 or args[0].text in {"-", ""}:  # noqa: PLR2004 - an action and a signal
        return Runs()
    return Runs(doubts=["'trap' runs what only bash can know"]) if args[0].text is None else Runs(texts=[args[0].text])


def _jobs(args: Sequence[Word]) -> Runs:
    """``jobs -x COMMAND`` runs the command, with process ids in place of its jobs."""
    options = read_options(args, _JOBS)
    if options.problem is not None:
        return Runs(doubts=[f"what 'jobs' runs: {options.problem}"])
    return Runs(commands=[(options.rest, ())]) if options.has("-x") and options.rest else Runs()


def _with_names(program: str, args: Sequence[Word]) -> Runs:
    """Judge builtins that take names of variables: a subscript is evaluated (``read 'a[$(rm x)]'``)."""
    doubts = [doubt for doubt in (look(program, args) for look in _LOOKS) if doubt is not None]
    if program in _DECLARING | _READING:
        doubts += [doubt for doubt in (_doubt_of_name(program, _name_in(word)) for word in args) if doubt is not None]
    return Runs(doubts=doubts)


def _substituting_subscript(program: str, args: Sequence[Word]) -> str | None:
    for word in args:
        if word.text is not None and "[" in word.text and _SUBSTITUTION.search(word.text):
            return f"{program!r} evaluates a subscript"
    return None


def _tested_variable(program: str, args: Sequence[Word]) -> str | None:
    if program in {"test", "["} and any(word.text in {"-v", "-R"} for word in args):
        return f"{program!r} with '-v' evaluates a subscript"
    return None


def _printed_into_variable(program: str, args: Sequence[Word]) -> str | None:
    if program != "printf" or not args:
        return None
    first = args[0]
    may_be_option = first.text is None or first.text.startswith("-v")
    return "'printf -v' sets a variable" if may_be_option and not first.prefix else None


def _entered_process(program: str, args: Sequence[Word]) -> str | None:
    if program in {"cd", "pushd"} and any(is_by_process(f"{word.text}/") for word in args):
        return f"{program!r} goes where './exe' may be any program"
    return None


_LOOKS: Final = (_substituting_subscript, _tested_variable, _printed_into_variable, _entered_process)


def _name_in(word: Word) -> str | None:
    """Return the variable (or option) that an argument names; None: only bash can know. Its value need not be known."""
    if word.text is not None:
        return word.text.partition("=")[0].removesuffix("+")
    assigned = None if word.many else ASSIGNMENT.match(word.prefix)
    return None if assigned is None else assigned.group(1)


def _doubt_of_name(program: str, name: str | None) -> str | None:
    """Return why naming this variable, or giving this option, may change what later words do; None: it does not."""
    if name is None:
        return f"{program!r} sets a variable that only bash can know"
    if name.startswith("-"):
        if program in _DECLARING and not _HARMLESS_DECLARATION.fullmatch(name):
            return f"{program!r} {name!r} changes how variables are read"
        return None
    if changes_programs(name) or not _PLAIN_NAME.fullmatch(name):
        # `read -p 'Continue? ' answer` is asked about too: prompts are rare where no one reads them.
        return f"{program!r} sets {name!r}, which may change what programs do"
    return None
