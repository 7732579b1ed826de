"""No text from an agent holds up the policy: whatever a command or a path looks like, its answer comes soon."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial

import pytest

from turngate.domain.policy import protected
from turngate.domain.policy.command_line import Unparsable
from turngate.domain.policy.commands import match_commands
from turngate.domain.policy.globs import parse_glob
from turngate.policies.facts import call_facts
from turngate.policies.shell.parser import read_command
from turngate.policies.shell.source import MAX_COMMAND_BYTES

BOUND_SECONDS = 3.0
"""Processor time. The slowest line takes a quarter of it. Before the bounds, lines took minutes or never ended."""

ALLOWING = ["git log *", "echo **", "cat **/a/**/a/**/a/**/b", "sed -n *"]
DENYING = ["rm -r|--recursive", "git push --force", "dd of=/dev/*", "find -delete", "cat */a/*/a/*/b"]


def filled(piece: str, size: int = MAX_COMMAND_BYTES - 200) -> str:
    return (piece * (size // len(piece) + 1))[:size]


LINES = {
    "sed with newlines between commands": "sed -n 'p" + "\n" * 10 + "p" + "\n" * 10 + "p…X'",
    "sed with many newlines": "sed -n 'p" + filled("\n") + "X'",
    "sed with many commands": "sed -n '" + filled("p;", 1_200) + "X'",
    "sed with blanks": "sed -n 'p" + filled(" ") + "X'",
    "sed with an open address": "sed -n '/" + filled("a") + "'",
    "sed with escapes": "sed 's/" + filled("\\a", 1_400) + "'",
    "a script's name like a descriptor": "bash '/proc/" + filled("/fd/") + "\nx'",
    "pipes": filled("a|"),
    "pipes, fewer": filled("a|", 2_800),
    "operators alone": filled("|"),
    "arrays": filled("a=("),
    "arrays, fewer": filled("a=(", 2_000),
    "joined words": filled("a@"),
    "joined words, fewer": filled("a@", 2_800),
    "closing brackets": filled(")", 1_400),
    "redirections": filled("<"),
    "redirections out": filled(">", 1_400),
    "here-documents": filled("cat <<E "),
    "here-documents on lines": filled("<<E\n", 3_000),
    "expansions": filled("${", 1_400),
    "quoted expansions": 'echo "' + filled("${a", 2_000) + '"',
    "extended globs": "case a in " + filled("@(a|", 2_000),
    "braces": "echo " + filled("{", 1_400),
    "a tilde and a long word": "echo ~" + filled("a"),
    "options": "sudo " + filled("-n "),
    "assignments": "env " + filled("A=1 ", 6_000),
    "replacements": "xargs " + filled("-I a ", 30_000) + filled("b ", 30_000),
    "wrappers": filled("timeout 1 "),
    "finds in finds": filled("find . -exec "),
    "commands in find": "find . " + filled("-exec a \\; ", 8_000),
    "a long path": "cat " + filled("a/"),
    "a long path for a glob": "cat " + filled("x/a/") + "c",
    "words": "echo " + filled("a "),
    "patterns": "cp '" + filled("*a?b ", 4_000) + "'",
    "choices": "cp '" + filled("{*?,*?,*?,*?,*?}{*?a,*?,*?,*?}{*?,b} ", 3_000) + "'",
    "an option of many parts": "cp -" + filled(".a*", 4_000),
    "beginnings and ends of names": "cp " + filled(".env -xrc "),
    "keywords": filled("if a\nthen "),
    "loops": filled("while a\ndo "),
    "cases": filled("case x in "),
}


def took(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


def judge(line: str) -> None:
    commands = read_command.__wrapped__(line)
    match_commands(DENYING, commands, allowing=False)
    match_commands(ALLOWING, commands, allowing=True)
    protected.touches(call_facts(json.dumps({"command": line}), None), [])


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_i14_no_command_line_holds_up_the_policy(line: str) -> None:
    """Reading and judging a command line takes a bounded time, however it was made."""
    assert took(partial(judge, line)) < BOUND_SECONDS


PIECES = [
    "a", " ", "\n", ";", "|", "&", "(", ")", "{", "}", "[", "]", "<", ">", "$", "`", "'", '"', "\\", "=", "#", "!", "*", "?", "@",
    "-", "+", ":", "/", ",", "~", "%", "^", ".", "<<E", "<<-", "<<<", "&&", "||", "$(", "${", "$((", "((", "[[", "]]", "<(",
    "if ", "then ", "fi ", "for x in ", "do ", "done ", "case x in ", "esac ", ";;", "function ", "f() ", "a=", "a=(", "a[1]=",
    "2>", "&>", "=~", "0", "export ", "{a,b}", "@(", "\\\n",
]  # fmt: skip


def test_i14_repeated_syntax_is_read_in_bounded_time() -> None:
    """Syntax repeated up to the limit of signs, which makes the parser slowest, is read or refused in a bounded time."""
    chance = random.Random(15)  # noqa: S311 - a fixed row of lines
    for _ in range(60):
        piece = "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 3)))
        line = filled(piece, 1_400)
        assert took(partial(judge, line)) < BOUND_SECONDS, line[:40]


def test_more_signs_than_the_parser_reads_in_time_are_not_read() -> None:
    """A line with too many signs is no command line that a rule could allow."""
    assert isinstance(read_command(filled("a|")), Unparsable)


def test_i14_a_glob_is_matched_in_bounded_time() -> None:
    """A pattern with many wildcards does not try every way to divide a long text among them."""
    text = filled("a/") + "c"
    for pattern in ("**/a/**/a/**/a/**/b", "*a*a*a*a*b", "**/*a*a*a*/**/*b*", "[a-z]*" * 20 + "b"):
        assert took(partial(parse_glob(pattern).fits, text)) < BOUND_SECONDS
        assert took(partial(parse_glob(pattern).fits, "a" * 60_000)) < BOUND_SECONDS


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("**", "", True),
        ("**/**", "a", True),
        ("/**", "/", True),
        ("a/**/**/z", "a/z", True),
        ("*a*b", "aab", True),
        ("*a*b", "aabc", False),
        ("a*", "a", True),
        ("a/*", "a/", True),
        ("[a-c-]x", "-x", True),
        ("[!a-c]x", "bx", False),
        ("[]]", "]", True),
        ("[!]]", "]", False),
        ("**/b/**/c", "b/b/x/c", True),
        ("**/b/c", "b/b/c", True),
    ],
)
def test_globs_find_every_match(pattern: str, text: str, fits: bool) -> None:
    """Trying only the last wildcard again loses no match."""
    assert parse_glob(pattern).fits(text) is fits


SED = [
    ("p", True),
    ("1,20p", True),
    ("/a\\/b/,$ p", True),
    ("$!d", True),
    ("s/a/b/g; s|x|y|\n\n p ;", True),
    ("p\n\n\nq", True),
    ("pp", False),
    ("p;;p", False),
    ("s/a/b/e", False),
    ("s/a/b/w x", False),
    ("1e", False),
    ("w x", False),
    ("r x", False),
    ("s,a,b,", False),
    ("/a", False),
    ("/a\nb/p", False),
    ("1,p", False),
    ("s/a/b\\", False),
    ("y/a/b/", False),
    ("", False),
]


@pytest.mark.parametrize(("script", "plain"), SED)
def test_plain_sed_scripts(script: str, plain: bool) -> None:
    """A sed script is plain when every command in it is one that only prints, deletes or substitutes."""
    commands = read_command(f"sed -n '{script}' f")
    assert not isinstance(commands, Unparsable)
    assert (not commands.doubts) is plain
