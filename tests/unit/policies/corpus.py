"""Commands that try to get past rules, made from tables: ways to write a word, ways to run a command, and places for both.

The tables are in ``corpus.json``. Each command runs in a directory with a few marks (``test_corpus``). None is expected to be
denied or asked about here: what counts is that no command that the policy allows sets off a mark. ``pwn`` is the program that
no rule allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

TABLES: dict[str, list[str]] = json.loads(Path(__file__).with_name("corpus.json").read_text())

DENYING = """
[[rule]]
name = "no-destruction"
verdict = "deny"
tools = ["*"]
command = ["pwn", "rm -r|-R|--recursive", "npm publish", "npm run deploy", "git push"]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["*"]
"""

WORKING = """
[[rule]]
name = "working"
verdict = "allow"
tools = ["*"]
command = [
  "git status", "git status -s|--short", "git diff *", "git log *", "ls *", "cat *", "head *", "echo *", "cd *", "grep -n *",
  "find . -name *", "sort *", "wc *", "timeout *", "xargs *", "awk *", "sed -n *", "true", "test *", "[ *", "env *", "nice *",
  "npm test", "npm run lint|build", "sqlite3 app.db", "sqlite3 -batch app.db .tables", "tar *", "rg *", "python3 -m pytest *",
  "jq *", "date", "command *", "printf *", "nohup *", "export *", "read *", "make check", "bash -n *", "sleep 0",
]
"""

READING = """
[[rule]]
name = "reading"
verdict = "allow"
tools = ["*"]
command = ["cat src/**", "head -n 1 src/**", "echo *", "ls *", "true", "printf *", "[ *", "test *"]
"""

GIT = """
[[rule]]
name = "git"
verdict = "allow"
tools = ["*"]
command = [
  "git status *", "git diff *", "git log *", "git show *", "git grep *", "git fetch *", "git pull *", "git ls-remote *",
  "git branch *", "git tag *", "git archive *", "git blame *", "git init *", "git clone *", "git config *", "git rebase *",
  "git stash *", "git commit *", "git add *", "git checkout *", "git bisect *", "git submodule *", "git describe *",
  "git shortlog *", "git rev-parse *", "git ls-files *", "git reflog *", "git cat-file *", "git merge *", "git worktree *",
]
"""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A command, the rules that judge it, and which marks besides ``pwn`` and ``keep`` show that it got past them."""

    rules: str
    command: str
    marks: str = ""


def thinned(first: str, second: str, step: int) -> Iterator[tuple[str, str]]:
    """Yield every ``step``-th pair of two tables, so that each entry of the first meets others of the second."""
    for (at, one), (other_at, other) in product(enumerate(TABLES[first]), enumerate(TABLES[second])):
        if (at + other_at) % step == 0:
            yield one, other


def attempts(step: int = 4) -> Iterator[Attempt]:
    """Yield the attempts. ``step``: only every such pair of the largest tables; 1: all 11,000."""
    for place, spelling in thinned("places", "spellings", step):
        yield Attempt(rules=DENYING, command=place.format(w=spelling))
    for way in TABLES["ways"]:
        yield from _by_one_way(way)
    for removal in TABLES["removals"]:
        yield Attempt(rules=DENYING, command=removal)
    for form, word in thinned("npm", "npm_words", step):
        yield Attempt(rules=DENYING, command=form.format(w=word), marks="npm-denied")
        yield Attempt(rules=WORKING, command=form.format(w=word), marks="npm-allowed")
    for head, tail in thinned("heads", "tails", step):
        yield Attempt(rules=WORKING, command=head + tail, marks="written")
    for form, name in thinned("secrets", "secret_names", step):
        yield Attempt(rules=READING, command=form.format(*[name] * form.count("{}")), marks="secret")
    for command in _of_git(step):
        yield Attempt(rules=GIT, command=command, marks="written")


def _by_one_way(way: str) -> Iterator[Attempt]:
    for command in ("pwn", "pwn a -b", "p\\wn"):
        yield Attempt(rules=DENYING, command=way.format(c=command))
    yield Attempt(rules=WORKING, command=way.format(c="pwn"))
    yield Attempt(rules=WORKING, command=f"cd src && {way.format(c='../../bin/pwn')}")


def _of_git(step: int) -> Iterator[str]:
    for subcommand, option in thinned("git_subcommands", "git_options", step):
        yield f"git {subcommand} {option}"
    for subcommand, prefix in thinned("git_subcommands", "git_prefixes", step):
        yield f"git {prefix} {subcommand}"
    for subcommand, variable in thinned("git_subcommands", "git_variables", step):
        yield f"{variable} git {subcommand}"
