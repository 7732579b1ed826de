"""The shell parser against bash itself: the parser lists every command that bash starts, or doubts the line."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from turngate.domain.policy.command_line import SimpleCommand, Unparsable
from turngate.policies.shell.parser import read_command

ENVIRONMENT = {
    "PATH": "/nonexistent",  # so bash finds no program, and hands each to the function below
    "LC_ALL": "C.UTF-8",
    "x": "rm y",
    "BASH_FUNC_command_not_found_handle%%": (
        '() { builtin printf -v o "%s\\x1f" "$@"; builtin printf "%s\\x1e" "$o" >&"$RAN"; }'
    ),
}
WORDS = [
    "rm",
    "ls",
    "a",
    "-rf",
    "2",
    '"a b"',
    "'a b'",
    "$x",
    '"$x"',
    "r'm'",
    "\\rm",
    "$'\\x72m'",
    "a#",
    "<(rm a)",
    "`ls a`",
]
PIECES = [
    *WORDS, " ", "\n", ";", "&&", "|", "&", "(", ")", "{ ", "; }", "'", '"', "\\", "`", "$(", "$x", "${x:-", "}", "<<E", "\nE\n",
    "\n\tE\n", " #", "=", "A=", ">", "2>", "if ", "then ", "fi", "do ", "done", "! ", "[[ ", " ]]", "*", "<<<", "time ", "eval ",
    "\\\n", "{a,b}", ">f", "&>", "$'", "<<-E", "cat ", "|&", "\u00a0", "f() ", "coproc ", "esac", "$[", "\\ ",
]  # fmt: skip
FORMS = [
    "{} && {}", "{}; {}", "{} | {}", "{}\n{}", "( {} )\n{}", "{{ {}; }} || {}", "if {}; then {}; fi",
    "for i in a b; do {}; {}; done",
    "case a in a) {};; *) {};; esac",
    "A=1 {}; {}", "{} >f {}", "{} 2>&1 | {}", "cat <<E\n$({})\nE\n{}", "cat <<'E' | {}\n$(a)\nE\n{}",
    "! {}; {}", "time {}; {}", "{} # {}", "[[ -n a ]] && {} || {}", "{} &\n{}", "ls $({}) {}", 'ls "$({})" {}', "ls `{}` ; {}",
    "ls <({}) {}", "ls <<< {} {}", "cat <<-E\n\t{}\n\tE\n{}", "ls ${{y:-$({})}} {}", ">f {} {}",
]  # fmt: skip


def composed(chance: random.Random, depth: int = 0) -> str:
    if depth > 2 or chance.random() < 0.4:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 3)))
    return chance.choice(FORMS).format(composed(chance, depth + 1), composed(chance, depth + 1))


def spoiled(chance: random.Random, line: str) -> str:
    for _ in range(chance.choice([0, 1, 1, 2])):
        at = chance.randint(0, len(line))
        line = line[:at] + chance.choice(PIECES) + line[at + chance.choice([0, 0, 0, 1, 2]) :]
    return line


def what_bash_starts(line: str, directory: Path) -> list[list[str]]:
    reading, writing = os.pipe()
    with open(reading, "rb") as ran:  # noqa: PTH123 - a descriptor has no path
        try:
            subprocess.run(
                ["/bin/bash", "-c", line],
                env={**ENVIRONMENT, "RAN": str(writing)},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writing],
                timeout=60,
                check=False,
            )
        finally:
            os.close(writing)
        # Ends when what bash left in the background has ended too, and closed its end of the pipe.
        written = ran.read()
    return [[os.fsdecode(word) for word in one.split(b"\x1f")[:-1]] for one in written.split(b"\x1e")[:-1]]


def covers(command: SimpleCommand, started: list[str]) -> bool:
    """Tell whether a listed command may become the started one; an unknown word may become any number of words."""
    places = {0}
    for word in command.words:
        if word.text is not None:
            places = {at + 1 for at in places if at < len(started) and started[at] == word.text}
            continue
        ends = {at: len(started) if word.many else at + 1 for at in places if word.many or at < len(started)}
        shortest = 0 if word.many else 1
        places = {
            end
            for at, last in ends.items()
            for end in range(at + shortest, last + 1)
            if all(one.startswith(word.prefix) for one in started[at:end])
        }
    return bool(command.words) and len(started) in places


def missed(line: str, directory: Path) -> list[list[str]]:
    """Return the commands that bash started and the parser neither listed nor doubted."""
    commands = read_command(line)
    if isinstance(commands, Unparsable) or commands.doubts:
        return []
    certain = [command for command in commands.simple if not command.guessed]
    return [
        started for started in what_bash_starts(line, directory) if not any(covers(one, started) for one in certain)
    ]


FOUND_BEFORE = [
    "rm -rf2>f",
    "cat -rf<<E\na\nE",
    "rm >f x -rf",
    "2 >f\\\n 2>&1",
    "r\\\nm x",
    "$\\\nx",
    '"$\\\n(rm)"',
    "git <<< 1\\\nstatus",
    "time a\\\n# rm",
    "[[else -n a ]] && rm",
    "[[ -n - ]] && rm- ]] && git",
    "! A=`git! A=`rm 2` -rf A=`2` 1",
    "time 'A=1' rm",
    "time -f a rm",
    'a $(cat <<E\nb\nE\ngit; a "$x")',
    "cat <<E \\ \na\nE",
    "cat <<-E\n\t`rm a`\n\tE",
    "git {rm,-rf} a",
    "stas\\\n=x rm",
]


@pytest.mark.parametrize("line", FOUND_BEFORE)
def test_what_the_tree_reads_wrongly(line: str, tmp_path: Path) -> None:
    """Lines that tree-sitter and bash read differently are read as bash reads them, or not at all."""
    assert missed(line, tmp_path) == []


def test_nothing_that_bash_starts_is_missed(tmp_path: Path) -> None:
    """In random lines, whole and damaged, no command is missed, and enough lines are read to be meaningful."""
    chance = random.Random(4)  # noqa: S311 - a fixed row of lines
    lines = [spoiled(chance, composed(chance)) for _ in range(700)]
    lines = [line for line in lines if "/" not in line and "\0" not in line]
    assert [(line, unseen) for line in lines if (unseen := missed(line, tmp_path))] == []
    read = [commands for line in lines if not isinstance(commands := read_command(line), Unparsable)]
    assert sum(not commands.doubts for commands in read) > len(lines) / 5
