"""``git`` runs other programs by settings, aliases and options (git(1), git-config(1))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import OptionTable, names, read_options
from turngate.policies.shell.wrappers import Runs

_GIT_GLOBAL = OptionTable(
    flags="pPhv",
    valued="Cc",
    long_flags=names(
        "--version --help --paginate --no-pager --no-replace-objects --no-lazy-fetch --no-optional-locks --bare "
        "--literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs --no-advice --html-path --man-path"
    ),
    long_valued=frozenset({"--git-dir", "--work-tree", "--namespace"}),
)
_GIT_SAFE_SETTINGS = re.compile(
    r"(?:user\.(?:name|email)|color\.[a-z.]+|core\.quotepath|advice\.[a-z]+|init\.defaultbranch)=", re.IGNORECASE
)
_GIT_RUNS = re.compile(
    r"--(?:ex(?:e|ec|t|tc|tcmd|ec-path)?|upload-p\w*|receive-p\w*|open-files-in-pager|\w+-filter|config|config-env|template)(?:=.*)?"
)
_GIT_RUNNERS = names("filter-branch daemon shell instaweb web--browse difftool mergetool hook p4")
_GIT_RUNS_BY_WORD = {"submodule": "foreach", "bisect": "run"}
_GIT_MESSAGE_OPTIONS = frozenset({"-m", "-am", "--message", "-F", "--file"})
"""They take the next word whatever it is; a message is often a substitution."""
_GIT_SHORT_RUNS = {"rebase": "x", "grep": "O", "clone": "uc"}


def run_git(args: Sequence[Word]) -> Runs:
    """Return what ``git`` is made to run by settings, aliases and options; its hooks and configuration are not looked at."""
    runs = Runs()
    options = read_options(args, _GIT_GLOBAL)
    if options.problem is not None:
        runs.doubts.append(f"what 'git' runs: {options.problem}")
    for setting in options.values("-c"):
        key, _, value = (setting.text or "").partition("=")
        if key.lower().startswith("alias.") and value.startswith("!"):
            runs.texts.append(value[1:])
        if setting.text is None or not _GIT_SAFE_SETTINGS.match(setting.text):
            runs.doubts.append(f"the setting {setting.raw!r} may make 'git' run another program")
    if options.rest:
        _judge_subcommand(options.rest, runs)
    return runs


def _judge_subcommand(words: Sequence[Word], runs: Runs) -> None:
    subcommand = words[0].text
    if subcommand is None or subcommand in _GIT_RUNNERS:
        runs.doubts.append(f"'git {words[0].raw}' runs other programs")
        return
    if _GIT_RUNS_BY_WORD.get(subcommand, "") in [word.text for word in words[1:]]:
        runs.doubts.append(f"'git {subcommand}' runs the command it is given")
    short = _GIT_SHORT_RUNS.get(subcommand, "")
    for before, word in pairwise(words):
        if word.text == "--":
            break
        if not word.many and before.text in _GIT_MESSAGE_OPTIONS and subcommand in {"commit", "tag"}:
            continue
        if word.may_be_option if word.text is None else _git_runs(word.text, short):
            runs.doubts.append(f"'git' may run another program by {word.raw!r}")


def _git_runs(text: str, short: str) -> bool:
    bundled = text.startswith("-") and not text.startswith("--") and any(letter in text for letter in short)
    return bundled or _GIT_RUNS.fullmatch(text) is not None or text.startswith(("ext::", "fd::"))
