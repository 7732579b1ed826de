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
- no redirection except to ``/dev/null``, between descriptors, and from files that are named; nothing left in the background.

A wrapper (``sudo``, ``xargs``, ``sh -c``) and what it runs are simple commands both: an allow rule needs a pattern for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from turngate.domain.policy.command_allow import allows
from turngate.domain.policy.command_deny import denies
from turngate.domain.policy.command_line import Commands, SimpleCommand, Unparsable
from turngate.domain.policy.command_pattern import parse_command_pattern
from turngate.domain.policy.facts import Finding


def match_commands(patterns: Sequence[str], commands: Commands | Unparsable, *, allowing: bool) -> Finding:
    """Judge what a command line runs by the rule's patterns, as the module says."""
    if isinstance(commands, Unparsable):
        return Finding(match="unclear", reason=f"the command could not be read: {commands.reason}")
    return _allowed(patterns, commands) if allowing else _denied(patterns, commands)


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
        if command.opaque is not None:
            unclear.append(f"{describe(command)!r} {command.opaque}")
    if unclear:
        return Finding(match="unclear", reason=unclear[0])
    return Finding(match="no", reason="no command of the line fits a pattern")


def _allowed(patterns: Sequence[str], commands: Commands) -> Finding:
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
    if commands.doubts:
        return Finding(match="unclear", reason=f"the command could not be read fully: {commands.doubts[0]}")
    return Finding(match="yes", reason="every command of the line fits a pattern")


def describe(command: SimpleCommand) -> str:
    """Return the command for an explanation, at most 120 characters."""
    text = " ".join([*(f"{name}=…" for name in command.assigns), *(word.raw for word in command.words)])
    return text if len(text) <= 120 else f"{text[:119]}…"  # noqa: PLR2004 - as the docstring says
