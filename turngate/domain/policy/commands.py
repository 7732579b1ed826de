"""Command rules: does what a command line runs fit the patterns? Judged on simple commands, never on the text.

**Deny and ask** rules match when *any* simple command holds *at least* what a pattern names:

- the program by its last path component, in any case (``rm`` is ``/bin/rm`` is ``./rm``);
- every flag of the pattern, in any position and however it is bundled (``-rf`` is ``-fr`` is ``-r x -f``). A long flag
  matches only by its name; an abbreviation of it (``--recurs``) is ``unclear``;
- its operands in order, with anything between them. Of a program with subcommands (``git``, ``npm``, …) the first operand of
  the pattern must be the subcommand. An operand is compared as written and as a normalised path; ``*`` crosses ``/``.

More flags and operands never save a command, so a trailing ``*`` changes nothing. A word that only bash can know, which
might complete the match, is ``unclear``; so is a line with doubts, or a program that does more than its words say.

**Allow** rules match when *every* simple command holds *at most* what a pattern names, and all of it:

- the program exactly as the pattern writes it, with no assignment in front;
- every word in the order of the pattern; flags between the same two operands may change places; ``-la`` is ``-al``. A flag of
  the pattern must be there, one that it does not name must not: ``git -c x=y status`` does not fit ``git status``;
- ``*`` inside an operand stays inside a path component and never covers ``..``; ``**`` crosses ``/``;
- further words of any kind only if the pattern ends with ``*``; only those may be words whose value bash alone can know;
- no redirection except to ``/dev/null``, between descriptors, and from files that are named; nothing left in the background;
- no option that lets ``git`` or ``find`` write to a file, and no remote that may be a path, unless the pattern names it
  (``git log --output=x`` does not fit ``git log *``);
- nothing to read from a file, a here-document, a here-string or a pipe, unless the rule says ``stdin`` or the program takes its
  input for text only (``cat``, ``grep``): ``sqlite3 app.db <<< '.shell rm x'`` does not fit ``sqlite3 app.db``.

A wrapper (``sudo``, ``xargs``, ``sh -c``) and what it runs are simple commands both: an allow rule needs a pattern for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turngate.domain.policy.command_allow import allows
from turngate.domain.policy.command_deny import denies, may_carry
from turngate.domain.policy.command_line import Commands, SimpleCommand, Unparsable
from turngate.domain.policy.command_pattern import parse_command_pattern
from turngate.domain.policy.facts import Finding


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEXT_READERS: Final = _names(
    "[ [[ : base32 base64 basename cat cd cksum cmp column comm cut date diff dirname du echo egrep expand export expr false "
    "fgrep file find fmt fold grep head hexdump iconv join jq ls md5sum mkdir nl od paste printenv printf pwd read readlink "
    "realpath rev rg seq sha1sum sha224sum sha256sum sha384sum sha512sum shuf sleep sort stat strings sum tac tail tee test "
    "touch tr tree true tsort type uname unexpand uniq wait wc which whoami xargs xxd yes awk gawk mawk nawk sed gsed command "
    "env nice nohup setsid stdbuf time timeout"
)
"""Programs that do nothing with their input but read it as text, and wrappers, whose command is judged on its own.

What ``awk`` and ``sed`` run is in their words. Their names count only without a path: ``./cat`` is another program.
"""

GIT_READERS: Final = _names(
    "add blame branch cat-file check-ignore commit describe diff for-each-ref grep hash-object log ls-files ls-remote ls-tree "
    "merge-base name-rev reflog rev-list rev-parse shortlog show show-ref status tag"
)
"""Subcommands of ``git`` that do nothing with their input but read it as text, and change no file of the work tree by name."""


def match_commands(
    patterns: Sequence[str], commands: Commands | Unparsable, *, allowing: bool, stdin: bool = False
) -> Finding:
    """Judge what a command line runs by the rule's patterns, as the module says. ``stdin``: the rule's, for allow rules."""
    if isinstance(commands, Unparsable):
        return Finding(match="unclear", reason=f"the command could not be read: {commands.reason}")
    return _allowed(patterns, commands, stdin=stdin) if allowing else _denied(patterns, commands)


def _denied(patterns: Sequence[str], commands: Commands) -> Finding:
    unclear = [f"the command could not be read fully: {doubt}" for doubt in commands.doubts]
    for command in commands.simple:
        if not command.words:
            continue
        for pattern in patterns:
            match denies(parse_command_pattern(pattern), command):
                case "yes" if not command.guessed:
                    return Finding(match="yes", reason=f"{describe(command)!r} fits {pattern!r}")
                case "yes" | "unclear":
                    unclear.append(f"{describe(command)!r} may be what {pattern!r} means")
                case _ if may_carry(parse_command_pattern(pattern), command):
                    unclear.append(f"{describe(command)!r} may run what {pattern!r} means")
        if command.opaque is not None:
            unclear.append(f"{describe(command)!r} {command.opaque}")
    if unclear:
        return Finding(match="unclear", reason=unclear[0])
    return Finding(match="no", reason="no command of the line fits a pattern")


def _allowed(patterns: Sequence[str], commands: Commands, *, stdin: bool) -> Finding:
    if commands.background:
        return Finding(match="no", reason="a command is left running with '&'")
    if commands.writes:
        return Finding(match="no", reason=f"the redirection {commands.writes[0]!r} is not let through")
    certain = [command for command in commands.simple if not command.guessed]
    if not certain:
        return Finding(match="no", reason="the line runs no command that a pattern could allow")
    for command in certain:
        if not any(allows(parse_command_pattern(pattern), command) for pattern in patterns):
            return Finding(match="no", reason=f"{describe(command)!r} fits no pattern")
        if command.stdin is not None and not stdin and not _reads_text_only(command):
            reason = f"{describe(command)!r} reads {command.stdin}, and the rule does not say stdin = true"
            return Finding(match="no", reason=reason)
    if commands.doubts:
        return Finding(match="unclear", reason=f"the command could not be read fully: {commands.doubts[0]}")
    return Finding(match="yes", reason="every command of the line fits a pattern")


def _reads_text_only(command: SimpleCommand) -> bool:
    if not command.words:
        return True
    program = command.words[0].text
    if program == "git":
        return any(word.text in GIT_READERS for word in command.words[1:2])
    return program in _TEXT_READERS


def describe(command: SimpleCommand) -> str:
    """Return the command for an explanation, at most 120 characters."""
    text = " ".join([*(f"{name}=…" for name in command.assigns), *(word.raw for word in command.words)])
    return text if len(text) <= 120 else f"{text[:119]}…"  # noqa: PLR2004 - as the docstring says
