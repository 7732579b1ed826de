"""The corpus, judged by the policy; and what it allowed, run by bash in a confined directory that shows what a command did."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus import Attempt, attempts
from test_bypasses import answer

from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.sandbox import Sandbox

SECRET = "5ecret-c0ntent"
BATCHES = 2
PATH = "/usr/local/bin:/usr/bin:/bin"
DRIVER = r"""
shopt -s nullglob
mapfile -d '' commands < commands
for at in "${!commands[@]}"; do
  template=template; [[ ${commands[at]} == *git* ]] && template=repository
  rm -rf case; cp -a "$template" case
  (cd case && exec timeout -k 1 3 bash -c "${commands[at]}") > out 2>&1 < /dev/null
  if [ -s ran ]; then echo "$at pwn"; : > ran; fi
  if [ -e case/mark ]; then echo "$at written"; fi
  if [ ! -e case/keep/inner ]; then echo "$at keep"; fi
  if read -r -d '' text < out; [[ $text == *SECRET* ]]; then echo "$at secret"; fi
  if [ -s npm ]; then while read -r line; do echo "$at npm $line"; done < npm; : > npm; fi
done
sleep 0.3
if [ -s ran ]; then echo "${#commands[@]} pwn"; fi
"""
"""Runs each command in its own copy of the template, and says which marks it left."""


def build(root: Path) -> None:
    """Make the directory: programs that leave marks, and the template of what each command finds where it runs."""
    for directory in ("bin", "evil", "template/src/b", "template/keep"):
        (root / directory).mkdir(parents=True)
    pwn = f'#!/bin/sh\necho "$0 $*" >> {root}/ran\n'
    for path, text in {
        "bin/pwn": pwn,
        "evil/ls": pwn,
        "evil/git": pwn,
        "bin/npm": f'#!/bin/sh\n(IFS=,; echo "$*") >> {root}/npm\n',
    }.items():
        (root / path).write_text(text)
        (root / path).chmod(0o755)
    for path, text in {
        "name": "pwn\n",
        "src/a": "a\n",
        "src/evil.awk": 'BEGIN { system("pwn") }\n',
        "src/evil.sed": "1e pwn\n",
        "src/evil.sh": "pwn\n",
        "src/sql": ".shell pwn\n",
        "keep/inner": "",
        "secret": f"{SECRET}\n",
    }.items():
        (root / "template" / path).write_text(text)
    for path in ("ran", "npm"):
        (root / path).write_text("")
    shutil.copytree(root / "template", root / "repository")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(root / "repository")]
    subprocess.run([*git, "init", "-q", "--template=", "-b", "main"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    shutil.copytree(root / "repository/.git", root / "evil/.git")
    with (root / "evil/.git/config").open("a") as config:
        config.write("[core]\n\tfsmonitor = pwn\n\tpager = pwn\n[diff]\n\texternal = pwn\n")


def marks_left(tried: Sequence[Attempt], root: Path) -> list[tuple[Attempt, str]]:
    """Run the commands one after the other in a sandbox. Return each mark that one left, with the command."""
    build(root)
    (root / "commands").write_bytes(b"".join(each.command.encode() + b"\0" for each in tried))
    temporary = root.with_name(f"{root.name}-temporary")
    temporary.mkdir()
    sandbox = Sandbox(workspace=root, temporary=temporary)
    command = machine.current().command(
        ["bash", "-c", DRIVER.replace("SECRET", SECRET)], sandbox, {"PATH": f"{root}/bin:{PATH}", "LC_ALL": "C.UTF-8"}
    )
    done = subprocess.run(
        command.argv, env=command.environment, cwd=command.directory, capture_output=True, check=True, timeout=120
    )
    lines = [line.split(" ", 1) for line in done.stdout.decode().splitlines()]
    return [(tried[min(int(at), len(tried) - 1)], mark) for at, mark in lines]


VALUED = {"--prefix", "--userconfig", "--workspace", "-w", "--loglevel", "--registry"}


def npm_operands(line: str) -> list[str]:
    """Return npm's words without its options."""
    operands: list[str] = []
    words = iter(line.split(","))
    for word in words:
        if word in VALUED:
            next(words, None)
        elif not word.startswith("-"):
            operands.append(word)
    return operands


def is_breach(attempt: Attempt, mark: str) -> bool:
    """Tell whether a mark shows that a command did what its rules should have stopped."""
    kind, _, words = mark.partition(" ")
    wanted = attempt.marks.split()
    if kind == "npm" and "npm-denied" in wanted:
        operands = npm_operands(words)
        return operands[:1] == ["publish"] or operands[:2] == ["run", "deploy"]
    if kind == "npm":
        return "npm-allowed" in wanted and words not in {"test", "run,lint", "run,build"}
    return kind in {"pwn", "keep"} or kind in wanted


@pytest.fixture(scope="module")
def allowed() -> list[Attempt]:
    return [each for each in attempts() if answer(each.rules, "bash", json.dumps({"command": each.command})) == "allow"]


@pytest.mark.exhaustive
def test_nothing_that_is_allowed_does_what_its_rules_forbid(allowed: list[Attempt], tmp_path: Path) -> None:
    """Of all commands of the corpus, none that the policy allowed runs a program, or writes a file, that its rules forbid."""
    tried = [each for each in allowed if "\0" not in each.command]
    with ThreadPoolExecutor(BATCHES) as pool:
        batches = pool.map(
            marks_left, [tried[at::BATCHES] for at in range(BATCHES)], [tmp_path / str(at) for at in range(BATCHES)]
        )
        left = [each for batch in batches for each in batch]
    assert [(each.command, mark) for each, mark in left if is_breach(each, mark)] == []


@pytest.mark.exhaustive
def test_the_corpus_is_large_and_not_only_refused(allowed: list[Attempt]) -> None:
    """It has at least 1,500 commands, and hundreds of them are allowed, so that running those means something."""
    assert len({each.command for each in attempts()}) >= 1_500
    assert len(allowed) >= 300


@pytest.mark.exhaustive
def test_the_marks_work(tmp_path: Path) -> None:
    """Commands that no rule would let through leave the marks that the other test looks for."""
    tried = [
        Attempt(rules="", command=command)
        for command in ("pwn", "rm -r keep", "cat secret", "echo >mark", "npm run deploy", "../bin/pwn a", "true")
    ]
    left = [(each.command, mark) for each, mark in marks_left(tried, tmp_path)]
    assert left == [
        ("pwn", "pwn"),
        ("rm -r keep", "keep"),
        ("cat secret", "secret"),
        ("echo >mark", "written"),
        ("npm run deploy", "npm run,deploy"),
        ("../bin/pwn a", "pwn"),
    ]
