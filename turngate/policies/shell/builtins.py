"""Bash's own commands that change what later words mean, or run text that is given to them (bash(1), SHELL BUILTIN COMMANDS)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import names
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
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READING = frozenset({"read", "getopts", "unset", "wait"})
_EVALUATING = frozenset({"test", "[", "printf", "cd", "pushd", "kill"}) | _DECLARING | _READING
_SET_OPTIONS = re.compile(r"[-+][euxvCf]+|[-+][euxvCf]*o|pipefail|errexit|nounset|xtrace|noclobber|verbose|noglob")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def changes_programs(variable: str) -> bool:
    """Tell whether setting a variable may change which program a later word starts, or what it runs."""
    return _DANGEROUS.fullmatch(variable) is not None


def run_builtin(program: str, args: Sequence[Word]) -> Runs | None:
    """Return what a builtin runs, or may; None when it is none that is looked at here."""
    if program == "eval":
        return _evaluated(args)
    if program == "trap":
        return _trapped(args)
    if program in _UNKNOWABLE:
        harmless = program in {"alias", "hash", "history"} and not args
        return (
            Runs()
            if harmless
            else Runs(doubts=[f"{program!r} changes what later commands are, or runs what is not read"])
        )
    if program == "set":
        plain = all(word.text is not None and _SET_OPTIONS.fullmatch(word.text) for word in args)
        return (
            Runs() if plain or (args and args[0].text == "--") else Runs(doubts=["'set' changes how the line is read"])
        )
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


def _with_names(program: str, args: Sequence[Word]) -> Runs:
    """Judge builtins that take names of variables: a subscript is evaluated (``read 'a[$(rm x)]'``)."""
    runs = Runs()
    names_variables = program in _DECLARING | _READING
    if any(word.text is not None and "[" in word.text and _SUBSTITUTION.search(word.text) for word in args):
        runs.doubts.append(f"{program!r} evaluates a subscript")
    if program in {"test", "["} and any(word.text in {"-v", "-R"} for word in args):
        runs.doubts.append(f"{program!r} with '-v' evaluates a subscript")
    if program == "printf" and args and (args[0].text is None or args[0].text.startswith("-v")) and not args[0].prefix:
        runs.doubts.append("'printf -v' sets a variable")
    for word in args if names_variables else []:
        if (
            word.text is None
            and word.prefix
            and (assigned := ASSIGNMENT.match(word.prefix)) is not None
            and not word.many
        ):
            name: str | None = assigned.group(1)
        else:
            name = None if word.text is None else word.text.partition("=")[0].removesuffix("+")
        if name is None:
            runs.doubts.append(f"{program!r} sets a variable that only bash can know")
        elif not name.startswith("-") and (changes_programs(name) or not _PLAIN_NAME.fullmatch(name)):
            # `read -p 'Go on? ' answer` is asked about too: prompts are rare where nobody reads them.
            runs.doubts.append(f"{program!r} sets {name!r}, which may change what programs do")
        elif name.startswith("-") and program in _DECLARING and not re.fullmatch(r"-[xrgp]+", name):
            runs.doubts.append(f"{program!r} {name!r} changes how variables are read")
    return runs
