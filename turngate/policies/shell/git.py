"""Which options of ``git`` are known to run nothing and to write nowhere else (git(1), Git 2.45).

An option that is not in the table of its subcommand makes the line doubtful. So does an abbreviation: git takes ``--upl`` for
``--upload-pack``, and only names that are written out are in the tables. What the configuration and hooks of the repository
that git works in run is not looked at. An allow rule has to name another one: a repository's settings can run programs, also
those of a remote that is a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import OptionTable, names, read_options
from turngate.policies.shell.wrappers import Runs

_GLOBAL = OptionTable(
    flags="pPhv",
    valued="Cc",
    long_flags=names(
        "--version --help --paginate --no-pager --no-replace-objects --no-lazy-fetch --no-optional-locks "
        "--literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs --no-advice --html-path --man-path"
    ),
    long_valued=frozenset({"--work-tree", "--namespace"}),
)
_SAFE_SETTINGS = re.compile(
    r"(?:user\.(?:name|email)|color\.[a-z.]+|core\.quotepath|advice\.[a-z]+|init\.defaultbranch)(?:=|$)", re.IGNORECASE
)
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
"""``ext::sh -c …``: the remote is what a helper program says it is."""
_REMOTE = re.compile(r"origin|(?:https?|ssh|git)://[^-].*|[^-/:][^/:]*:(?!:|//).*", re.DOTALL)
"""A remote that is on another machine. Another name than ``origin`` may be that of a directory (git-fetch(1), GIT URLS)."""
_NAMES_REMOTE = {
    **dict.fromkeys(("fetch", "pull", "push", "clone", "ls-remote"), 0),
    "remote add": 2,
    "remote set-url": 2,
    "submodule add": 1,
    "submodule set-url": 2,
}
"""Subcommand, with its first operand where that is one of its own → which operand is a remote, if there is one."""

_DIFF = """
-p -u --patch -s --no-patch -U: --unified: --raw --patch-with-raw --indent-heuristic --no-indent-heuristic --minimal --patience
--histogram --anchored: --diff-algorithm: --stat? --stat-width: --stat-name-width: --stat-count: --compact-summary --numstat
--shortstat -X? --dirstat? --cumulative --summary --patch-with-stat -z --name-only --name-status --submodule? --color? --no-color
--color-moved? --no-color-moved --color-moved-ws: --word-diff? --word-diff-regex: --color-words? --no-renames --rename-empty
--no-rename-empty --check --full-index --binary --abbrev? --no-abbrev -B? --break-rewrites? -M? --find-renames? -C?
--find-copies? --find-copies-harder -D --irreversible-delete -l: --diff-filter: -S: -G: --find-object: --pickaxe-all
--pickaxe-regex -O: --skip-to: --rotate-to: -R --relative? --no-relative -a --text --ignore-cr-at-eol --ignore-space-at-eol -b
--ignore-space-change -w --ignore-all-space --ignore-blank-lines -I: --ignore-matching-lines: --inter-hunk-context: -W
--function-context --exit-code --quiet --no-ext-diff --no-textconv --ignore-submodules? --src-prefix: --dst-prefix: --no-prefix
--default-prefix --line-prefix: --ita-invisible-in-index --output!
"""
_LOG = f"""{_DIFF}
-n: --max-count: -i --skip: --since: --after: --until: --before: --since-as-filter: --author: --committer: --grep-reflog: --grep:
--all-match --invert-grep --regexp-ignore-case -E --extended-regexp -F --fixed-strings -P --perl-regexp --basic-regexp --merges
--no-merges --min-parents: --max-parents: --first-parent --exclude-first-parent-only --not --all --branches? --tags? --remotes?
--glob: --exclude: --reflog --cherry-mark --cherry-pick --left-only --right-only --cherry -g --walk-reflogs --merge --boundary
--simplify-by-decoration --show-pulls --full-history --dense --sparse --simplify-merges --ancestry-path? --date-order
--author-date-order --topo-order --reverse --no-walk? --do-walk --pretty? --format: --abbrev-commit --no-abbrev-commit --oneline
--encoding: --expand-tabs? --no-expand-tabs --notes? --no-notes --relative-date --date: --parents --children --left-right --graph
--no-graph --show-linear-break? -c --cc --dd -m --diff-merges: --no-diff-merges --combined-all-paths -t --follow --no-decorate
--decorate? --decorate-refs: --decorate-refs-exclude: --clear-decorations --source --mailmap --no-mailmap --use-mailmap --log-size
-L: --remerge-diff --count --objects --stdin -<n>
"""
_PATHS = "--pathspec-from-file: --pathspec-file-nul"
_LISTING = (
    "-l --list --sort: --format: --merged? --no-merged? --contains? --no-contains? --points-at: -i --ignore-case --column? "
    "--no-column --color? --no-color --create-reflog --omit-empty"
)
_TRANSFER = """
-q --quiet -v --verbose --progress --no-progress -4 -6 --ipv4 --ipv6 --atomic --no-atomic -n --dry-run -f --force --tags --prune
--no-prune --recurse-submodules? --no-recurse-submodules -o: --all
"""
_FETCH = f"""{_TRANSFER}
-a --append --depth: --deepen: --shallow-since: --shallow-exclude: --unshallow --update-shallow -k --keep --prefetch -p
-P --prune-tags --no-tags --refmap: -t -j: --jobs: -u --update-head-ok --server-option: --show-forced-updates
--no-show-forced-updates --set-upstream --auto-maintenance --no-auto-maintenance --auto-gc --no-auto-gc --write-fetch-head
--no-write-fetch-head --filter: --no-filter --negotiation-tip: --refetch
"""
_MERGE = """
--ff --no-ff --ff-only --commit --no-commit --no-edit --squash --no-squash --stat --no-stat --log? --no-log -X:
--strategy-option: --verify --no-verify -q --quiet -v --verbose --progress --no-progress --allow-unrelated-histories --autostash
--no-autostash --signoff --no-signoff --rerere-autoupdate --no-rerere-autoupdate
"""
_CHECKOUT = f"""{_PATHS}
-q --quiet --progress --no-progress -f --force --ours --theirs -d --detach --orphan: -m --merge --conflict: --guess --no-guess
--ignore-skip-worktree-bits --ignore-other-worktrees --overwrite-ignore --no-overwrite-ignore --recurse-submodules?
--no-recurse-submodules --overlay --no-overlay -p --patch -t? --track? --no-track
"""
_PICK = (
    "-n --no-commit -x -m: --mainline: --continue --skip --abort --quit --no-edit -s --signoff -X: --strategy-option: --ff "
    "--allow-empty --allow-empty-message --keep-redundant-commits"
)

_OPTIONS: Final[dict[str, str]] = {
    # subcommand → its options. ':' takes a value, '?' may have one in the same word, '!' names a file that is written: an
    # allow rule has to name such an option. '-<n>': a number.
    "add": f"-n --dry-run -v --verbose -f --force -u --update -A --all --no-all --no-ignore-removal --ignore-removal -N "
    f"--intent-to-add --refresh --ignore-errors --ignore-missing --renormalize --chmod: --sparse -p --patch {_PATHS}",
    "apply": "--stat --numstat --summary --check --index --cached -3 --3way -R --reverse --reject -p: -C: -v --verbose -q "
    "--quiet --whitespace: --ignore-whitespace --ignore-space-change --recount --unidiff-zero --directory: --exclude: --include: "
    "--no-add --allow-empty -N --intent-to-add",
    "archive": "--format: -l --list -v --verbose --prefix: -o! --output! --worktree-attributes",
    "bisect": "--first-parent --no-checkout --term-new: --term-old:",
    "blame": "-b --root --show-stats -L: -l -t -S: --reverse --first-parent -p --porcelain --line-porcelain --incremental "
    "--encoding: --contents: --date: -M? -C? -h -c --score-debug -f --show-name -n --show-number -s -e --show-email -w "
    "--abbrev: --ignore-rev: --ignore-revs-file: --color-lines --color-by-age --progress --no-progress",
    "branch": f"{_LISTING} -a --all -r --remotes -v --verbose -q --quiet --show-current --abbrev? --no-abbrev -d --delete -D -m "
    "--move -M -c --copy -C -f --force -t? --track? --no-track -u: --set-upstream-to: --unset-upstream",
    "cat-file": "-p -t -s -e --batch-all-objects --buffer --unordered",
    "check-ignore": "-q --quiet -v --verbose --stdin -z -n --non-matching --no-index",
    "checkout": f"{_CHECKOUT} -b: -B: -l",
    "cherry": "-v --abbrev?",
    "cherry-pick": _PICK,
    "clean": "-d -f --force -q --quiet -n --dry-run -e: --exclude: -x -X",
    "clone": "-l --local --no-hardlinks --depth: -b: --branch: -n --no-checkout --bare --mirror -o: --origin: --single-branch "
    "--no-single-branch --no-tags --recursive? --recurse-submodules? -q --quiet -v --verbose --progress --shallow-submodules "
    "-j: --jobs: --filter: --sparse --dissociate --shallow-since: --shallow-exclude:",
    "commit": f"-a --all -m: --message: -F: --file: --amend --no-edit -s --signoff --no-signoff -n --no-verify --verify -q "
    f"--quiet --dry-run --short --branch --porcelain --long -z -v --verbose -u? --untracked-files? --author: --date: "
    f"--allow-empty --allow-empty-message -C: --reuse-message: --fixup: --squash: --reset-author --trailer: -o --only -i "
    f"--include --no-post-rewrite --status --no-status --cleanup: -S? --gpg-sign? --no-gpg-sign {_PATHS}",
    "config": "--get --get-all --get-regexp --get-urlmatch -l --list --name-only --show-origin --show-scope --local --global "
    "--system --worktree -z --null --type: --bool --int --bool-or-int --path --default: --includes --no-includes",
    "count-objects": "-v --verbose -H --human-readable",
    "describe": "--dirty? --broken? --all --tags --contains --abbrev: --candidates: --exact-match --debug --long --match: "
    "--exclude: --always --first-parent",
    "diff": f"{_DIFF} --cached --staged --merge-base --no-index --base --ours --theirs -<n>",
    "diff-files": f"{_DIFF} -q -<n>",
    "diff-index": f"{_DIFF} --cached -m --merge-base",
    "diff-tree": f"{_LOG} -r --root --no-commit-id",
    "fetch": _FETCH,
    "for-each-ref": f"{_LISTING} --count: --exclude:",
    "fsck": "--full --no-full --strict --unreachable --dangling --no-dangling --root --tags --verbose --progress --no-progress",
    "gc": "--auto --prune? --no-prune --aggressive -q --quiet --force",
    "grep": "-a --text -i --ignore-case -I --no-textconv --max-depth: -r --recursive --no-recursive -w --word-regexp -v "
    "--invert-match -h -H --full-name -E --extended-regexp -G --basic-regexp -P --perl-regexp -F --fixed-strings -n "
    "--line-number --column -l --files-with-matches --name-only -L --files-without-match -z --null -o --only-matching -c "
    "--count --color? --no-color --break --heading -p --show-function -A: --after-context: -B: --before-context: -C: "
    "--context: -W --function-context -m: --max-count: --threads: -f: -e: --and --or --not --all-match -q --quiet --cached "
    "--untracked --no-index --no-exclude-standard --exclude-standard --recurse-submodules -<n>",
    "hash-object": "-t: -w --stdin --no-filters --path:",
    "init": "-q --quiet --bare -b: --initial-branch: --object-format: --shared?",
    "log": _LOG,
    "ls-files": "-z -t -v -f -c --cached -d --deleted -m --modified -o --others -i --ignored -s --stage --directory "
    "--no-empty-directory --eol --error-unmatch --with-tree: --full-name --abbrev? --deduplicate -u --unmerged -k --killed -x: "
    "--exclude: -X: --exclude-from: --exclude-per-directory: --exclude-standard --recurse-submodules --debug --sparse "
    "--resolve-undo --format:",
    "ls-remote": "-h --heads --branches -t --tags --refs -q --quiet --exit-code --get-url --sort: --symref",
    "ls-tree": "-d -r -t -l --long -z --name-only --name-status --object-only --full-name --full-tree --abbrev? --format:",
    "merge": f"{_MERGE} -m: -F: --file: -n --abort --quit --continue --into-name:",
    "merge-base": "-a --all --octopus --independent --is-ancestor --fork-point",
    "mv": "-f --force -k -n --dry-run -v --verbose --sparse",
    "name-rev": "--name-only --tags --refs: --exclude: --all --always --undefined --no-undefined",
    "pull": f"{_FETCH} {_MERGE} -r? --rebase? --no-rebase",
    "push": f"{_TRANSFER} --branches --mirror --porcelain -d --delete --follow-tags --no-follow-tags --signed? --no-signed "
    "--push-option: --force-with-lease? --no-force-with-lease --force-if-includes --no-force-if-includes -u --set-upstream "
    "--thin --no-thin --verify --no-verify",
    "rebase": "--onto: --keep-base --continue --skip --abort --quit --apply -m --merge -q --quiet -v --verbose --stat -n "
    "--no-stat --no-verify --verify --root --autosquash --no-autosquash --autostash --no-autostash --fork-point --no-fork-point "
    "--ignore-whitespace --signoff --update-refs --no-update-refs --rebase-merges? -r? --no-rebase-merges -f --force-rebase "
    "--no-ff --keep-empty --empty: -X: --strategy-option: --committer-date-is-author-date --ignore-date --reset-author-date",
    "reflog": _LOG,
    "remote": "-v --verbose --add --push --delete --all -t: -m: -f --tags --no-tags -n --dry-run -p --prune -d -a --auto",
    "reset": f"-q --quiet --no-quiet --refresh --no-refresh --soft --mixed -N --intent-to-add --hard --merge --keep "
    f"--recurse-submodules? --no-recurse-submodules -p --patch {_PATHS}",
    "restore": f"-s: --source: -p --patch -W --worktree -S --staged -q --quiet --progress --no-progress --ours --theirs -m "
    f"--merge --conflict: --ignore-unmerged --ignore-skip-worktree-bits --recurse-submodules? --no-recurse-submodules --overlay "
    f"--no-overlay {_PATHS}",
    "rev-list": _LOG,
    "rev-parse": "--abbrev-ref? --short? --verify -q --quiet --show-toplevel --git-dir --absolute-git-dir --git-common-dir "
    "--show-prefix --show-cdup --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository "
    "--symbolic --symbolic-full-name --all --branches? --tags? --remotes? --show-superproject-working-tree "
    "--show-object-format? --sq --revs-only --no-revs --flags --no-flags --default: --git-path: --path-format: --not",
    "revert": _PICK,
    "rm": f"-f --force -n --dry-run -r --cached --ignore-unmatch --sparse -q --quiet {_PATHS}",
    "shortlog": f"{_LOG} --numbered --summary -e --email --group:",
    "show": _LOG,
    "show-ref": "--head --heads --branches --tags -d --dereference -s --hash? --verify -q --quiet --abbrev? --exists",
    "stash": f"-p --patch -k --keep-index --no-keep-index -q --quiet -u --include-untracked --only-untracked -a --all -m: "
    f"--message: -S --staged --index --stat? --name-only --name-status --numstat {_PATHS}",
    "status": "-s --short -b --branch --no-branch --show-stash --porcelain? --long -v --verbose -u? --untracked-files? "
    "--ignore-submodules? --ignored? -z --column? --no-column --ahead-behind --no-ahead-behind --renames --no-renames "
    "--find-renames?",
    "submodule": "-q --quiet --cached --recursive --init --remote -N --no-fetch --checkout --merge --rebase -f --force --depth: "
    "-j: --jobs: --progress --no-progress -b: --branch: --name: --all",
    "switch": "-c: --create: -C: --force-create: -d --detach --guess --no-guess -f --force --discard-changes -m --merge "
    "--conflict: -q --quiet --progress --no-progress -t? --track? --no-track --orphan: --ignore-other-worktrees "
    "--recurse-submodules? --no-recurse-submodules",
    "symbolic-ref": "-q --quiet --short --recurse --no-recurse -d --delete -m:",
    "tag": f"{_LISTING} -n? -a --annotate -s --sign --no-sign -f --force -d --delete -m: --message: -F: --file: --cleanup:",
    "whatchanged": _LOG,
    "worktree": "-f --force -b: -B: -d --detach --checkout --no-checkout --lock --reason: --orphan --guess-remote "
    "--no-guess-remote --track --no-track -v --verbose --porcelain -z --expire: -n --dry-run -q --quiet",
    "write-tree": "--missing-ok --prefix:",
}
_RUNS_BY_WORD = {"submodule": "foreach", "bisect": "run"}
_READS_SETTINGS = names("--get --get-all --get-regexp --get-urlmatch -l --list")


@dataclass(frozen=True, slots=True)
class _Table:
    """The options of one subcommand: name → ``""``, ``:``, ``?`` or ``!`` as in ``_OPTIONS``."""

    kinds: dict[str, str]

    @classmethod
    def of(cls, text: str) -> _Table:
        return cls(kinds={each.rstrip(":?!"): each[len(each.rstrip(":?!")) :] for each in text.split()})


_TABLES: Final = {subcommand: _Table.of(text) for subcommand, text in _OPTIONS.items()}


def run_git(args: Sequence[Word]) -> Runs:
    """Return what ``git`` is made to run by settings, aliases and options; its hooks and configuration are not looked at."""
    runs = Runs()
    options = read_options(args, _GLOBAL)
    if options.problem is not None:
        runs.doubts.append(f"what 'git' runs: {options.problem}")
    for setting in options.values("-c"):
        key, _, value = (setting.text or "").partition("=")
        if key.lower().startswith("alias.") and value.startswith("!"):
            runs.texts.append(value[1:])
        if setting.text is None or not _SAFE_SETTINGS.match(setting.text):
            runs.doubts.append(f"the setting {setting.raw!r} may make 'git' run another program")
    if options.rest:
        _judge_subcommand(options.rest, runs)
    return runs


def _judge_subcommand(words: Sequence[Word], runs: Runs) -> None:
    subcommand = words[0].text
    table = None if subcommand is None else _TABLES.get(subcommand)
    if subcommand is None or table is None:
        if subcommand not in {"help", "version"}:
            runs.doubts.append(f"what 'git {words[0].raw}' runs is not known")
        return
    if _RUNS_BY_WORD.get(subcommand, "") in [word.text for word in words[1:]]:
        runs.doubts.append(f"'git {subcommand}' runs the command it is given")
    if subcommand == "config" and not _only_reads_settings(words[1:]):
        runs.doubts.append("a setting may make 'git' run another program")
    _judge_operands(subcommand, _operands(subcommand, words[1:], table, runs), runs)


def _operands(subcommand: str, words: Sequence[Word], table: _Table, runs: Runs) -> list[Word]:
    """Judge the options after a subcommand, and return its operands."""
    operands: list[Word] = []
    is_value = False
    for index, word in enumerate(words):
        if word.text == "--" and not is_value:
            return [*operands, *words[index + 1 :]]
        if not is_value and (word.text is None or word.text == "-" or not word.text.startswith("-")):
            operands.append(word)
        is_value = _judge_option(subcommand, word, table, runs, is_value=is_value)
    return operands


def _judge_option(subcommand: str, word: Word, table: _Table, runs: Runs, *, is_value: bool) -> bool:
    """Judge a word that may be an option. Return whether the next one is its value. ``is_value``: it may be one itself."""
    text = word.text
    if text is None:
        if word.may_be_option and (word.many or not is_value):
            runs.doubts.append(f"'git {subcommand}' may run another program by {word.raw!r}")
        return False
    if not text.startswith("-") or text == "-":
        return False
    # A value that looks like an option is judged as one: should the table be wrong about the option before it, nothing hides.
    kind = _kind(text, table)
    if kind is None:
        runs.doubts.append(f"'git {subcommand}' may run another program by {word.raw!r}")
    if kind == "!":
        runs.named.append(text)
    return not is_value and (kind == ":" or (kind == "!" and text in table.kinds))


def _judge_operands(subcommand: str, operands: Sequence[Word], runs: Runs) -> None:
    for word in operands:
        if word.text is not None and _HELPER.match(word.text):
            runs.doubts.append(f"'git {subcommand}' may run another program by {word.raw!r}")
    first = operands[0].text if operands else ""
    at = _NAMES_REMOTE.get(subcommand, _NAMES_REMOTE.get(f"{subcommand} {first}", len(operands)))
    for word in operands[at : at + 1]:
        if word.text is None:
            runs.doubts.append(f"'git {subcommand}' may run what the repository {word.raw!r} says")
        elif not _REMOTE.fullmatch(word.text):
            runs.named.append(word.text)


def _only_reads_settings(words: Sequence[Word]) -> bool:
    reads = any(word.text in _READS_SETTINGS for word in words)
    keys = [word.text for word in words if word.text is not None and not word.text.startswith("-")]
    return reads or (bool(keys) and _SAFE_SETTINGS.fullmatch(keys[0]) is not None)


def _kind(text: str, table: _Table) -> str | None:
    """Return whether an option is known: ``:`` or ``!`` if the next word is its value, ``""`` if not, None: it is not known."""
    if text.startswith("--"):
        name, equals, _ = text.partition("=")
        kind = table.kinds.get(name)
        if kind is None or (equals and not kind):
            return None
        return kind if kind == "!" or (kind == ":" and not equals) else ""
    if "-<n>" in table.kinds and text[1:].isdecimal():
        return ""
    return _bundle_kind(text, table)


def _bundle_kind(text: str, table: _Table) -> str | None:
    for at, letter in enumerate(text[1:], start=1):
        kind = table.kinds.get(f"-{letter}")
        if kind is None:
            return None
        if kind == "!":
            return kind
        if kind:
            attached = at + 1 < len(text)
            return ":" if kind == ":" and not attached else ""
    return ""
