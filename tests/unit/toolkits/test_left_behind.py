"""What a confined command leaves that the operator's own git or editor obeys: held where it can be, else named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from turngate.toolkits.confinement.left_behind import LeftBehind
from turngate.toolkits.confinement.machine import Confinement
from turngate.toolkits.confinement.sandbox import Backend, Sandbox

HOOK = "printf '#!/bin/sh\\ntouch %s/obeyed' $PWD"
"""Prints a program that an operator's git would run."""


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=otto", "-c", "user.email=otto@example.com"]
    line = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def repository(directory: Path, *options: str) -> Path:
    """Make a repository with one commit."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", *options)
    (directory / "file").write_text("text")
    git(directory, "add", "file")
    git(directory, "commit", "-qm", "first")
    return directory


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture
def run(backend: Backend, tmp_path: Path) -> Callable[[str], str]:
    """Return what runs a confined command in ``work``, and returns what it and its confinement wrote to stderr."""
    (tmp_path / "temporary").mkdir()
    sandbox = Sandbox(workspace=tmp_path / "work", temporary=tmp_path / "temporary")

    def confined(text: str) -> str:
        identity = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; "
        command = Confinement(backend=backend).command(["bash", "-c", identity + text], sandbox, {"PATH": os.defpath})
        return subprocess.run(
            command.argv, env=command.environment, cwd="/", capture_output=True, text=True, check=True
        ).stderr

    return confined


def named(errors: str) -> set[str]:
    """Return the places that the confinement says are new or were changed."""
    line = next(
        (line for line in errors.splitlines() if line.startswith("turngate: ") and "obeys it outside" in line), ""
    )
    return set(line.removeprefix("turngate: ").partition(" in /")[0].split(", ")) - {""}


def test_what_git_will_obey_is_named(run: Callable[[str], str], tmp_path: Path) -> None:
    """New repositories, bare ones too, and changed settings and hooks of those in subdirectories; what was there before isn't."""
    work = repository(tmp_path / "work")
    repository(work / "deep/er/lib")
    repository(work / "quiet")
    errors = run(
        f"git init -q sub; mkdir -p objects/x/bare && git init -q --bare objects/x/bare; mkdir file.d; mv quiet file.d/moved;"
        f"{HOOK} > deep/er/lib/.git/hooks/pre-commit; git -C deep/er/lib config core.fsmonitor ./evil; mkdir w;"
        "echo 'gitdir: ../sub/.git' > w/.git"
    )
    assert named(errors) == {
        "sub/.git",
        "objects/x/bare",
        "file.d/moved/.git",
        "deep/er/lib/.git/hooks/pre-commit",
        "deep/er/lib/.git/config",
        "w/.git",
    }
    assert run("ls -R > /dev/null; echo more > w/file") == ""


def test_a_repository_that_the_index_names_is_named_for_that(run: Callable[[str], str], tmp_path: Path) -> None:
    """The operator's `git status` at the top goes into it, so that is said, also when the repository was there before."""
    work = repository(tmp_path / "work")
    repository(work / "sub")
    assert "turngate: sub/.git in " in (errors := run("git add sub 2>/dev/null"))
    assert "is in the index now, so your `git status` at the top obeys its settings" in errors


def test_submodules_are_held(backend: Backend, run: Callable[[str], str], tmp_path: Path) -> None:
    """Their settings and hooks stay, and so does their place, whether `.git` is a directory or a file; a commit still works."""
    work = repository(tmp_path / "work")
    places = [repository(work / name) for name in ("sub", "deep/er/sub")]
    repository(tmp_path / "work/other", f"--separate-git-dir={tmp_path / 'elsewhere'}")
    git(work, "add", "sub", "deep/er/sub", "other")
    errors = run(
        "for each in sub deep/er/sub; do echo x > $each/new; (cd $each && git add new && git commit -qm second);"
        f"git -C $each config core.fsmonitor ./evil; {HOOK} > $each/.git/hooks/pre-commit; echo ../x > $each/.git/commondir;"
        "mv $each/.git $each/old; mv $each $each.old && cp -r $each.old $each; done;"
        "mv deep/er deep/old; mv deep away; mkdir -p deep/er/sub;"
        "rm -f other/.git; echo gitdir: ../sub/.git > other/.git; true"
    )
    if backend == "landlock":  # it can't hold them: docs/security.md says so
        assert {"other/.git", "sub/old"} <= named(errors)
        return
    assert named(errors) == set()
    for place in places:
        assert git(place, "log", "--format=%s") == "second\nfirst\n"
        assert not (place / ".git/hooks/pre-commit").exists()
        assert "fsmonitor" not in (place / ".git/config").read_text()
    assert (work / "other/.git").read_text() == f"gitdir: {tmp_path}/elsewhere\n"


def test_links_in_a_repository_are_removed(run: Callable[[str], str], tmp_path: Path) -> None:
    """Git makes none, and a commit of the operator's would write over what they lead to; a link that was there stays."""
    names = [
        *("COMMIT_EDITMSG", "logs/HEAD", "logs/refs/heads/new", "index", "refs/heads/new", "rebase-merge"),
        *("objects/info/commit-graph", "objects/info/commit-graphs/chain", "objects/pack/multi-pack-index"),
        *("objects/aa", "refs/heads/objects/x/y"),
    ]
    work, victim = repository(tmp_path / "work"), tmp_path / "victim"
    victim.write_text("kept")
    (work / ".git/old").symlink_to(victim)
    errors = run(
        "".join(f"mkdir -p .git/{Path(name).parent}; rm -rf .git/{name}; ln -s {victim} .git/{name};" for name in names)
    )
    *named_ones, _last = sorted(f".git/{name}" for name in names)
    assert f"turngate: removed {', '.join(named_ones)} and 1 more in {work}: git makes no links there" in errors
    assert not any((work / ".git" / name).is_symlink() for name in names)
    assert (work / ".git/old").is_symlink()
    git(work, "commit", "--allow-empty", "-qm", "operator")
    git(work, "gc", "-q")
    git(work, "multi-pack-index", "write")
    assert victim.read_text() == "kept"


def test_links_in_a_repository_without_a_project_are_removed(run: Callable[[str], str], tmp_path: Path) -> None:
    """Where git writes, be it the workspace itself or below it; links in other directories that lie there stay."""
    work = tmp_path / "work"
    git(tmp_path, "init", "-q", "--bare", "work")
    git(work, "init", "-q", "--bare", "lib.git")
    links = [
        f"{top}{name}" for top in ("", "lib.git/") for name in ("FETCH_HEAD", "objects/info/packs", "refs/heads/x")
    ]
    assert git(work, "rev-parse", "--is-bare-repository") == "true\n"
    errors = run("".join(f"ln -s ~/victim {link};" for link in links) + "mkdir -p lib.git/src; ln -s x lib.git/src/x")
    assert f"turngate: removed {', '.join(sorted(links))} in {work}: " in errors
    assert [each.name for each in work.rglob("*") if each.is_symlink()] == ["x"]


def test_many_files_hide_nothing_of_a_nearer_repository(tmp_path: Path) -> None:
    """What fills one repository is said of that one, and the others are looked at all the same."""
    near, far = (repository(tmp_path / name) for name in ("near", "near/far"))
    look = LeftBehind(str(tmp_path), [])
    for number in range(10_001):
        (near / f".git/{number}").touch()
    (far / ".git/FETCH_HEAD").symlink_to("x")
    removed, cut = look.report([])
    assert removed.startswith("removed near/far/.git/FETCH_HEAD in ")
    assert cut == f"near/.git in {tmp_path} has so many files now that not all of them were looked at"


def test_what_is_held_for_another_command_is_no_repository(tmp_path: Path) -> None:
    """Commands at the same time make the same placeholders and take them away; one file with something in it is a repository."""
    look = LeftBehind(str(tmp_path), [])
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/config").touch()
    (tmp_path / ".git/commondir").write_text(".\n")
    assert list(look.report([])) == []
    (tmp_path / ".git/config").write_text("[core]\n")
    [named] = look.report([])
    assert named.startswith(f".git in {tmp_path} is new")


def test_everyday_commands_are_not_spoken_about(run: Callable[[str], str], tmp_path: Path) -> None:
    """Commits, branches, merges, stashes and builds change nothing of that."""
    repository(tmp_path / "work")
    errors = run(
        "git checkout -q -b topic/config; echo x > x; git add x; git commit -qm second; git tag info/config; git gc -q;"
        "git checkout -q -; git merge -q topic/config; echo y > x; git stash -q; git stash pop -q; git notes add -m n;"
        "mkdir -p node_modules/.bin hooks; ln -s ../../x node_modules/.bin/x; touch hooks/config"
    )
    assert "turngate:" not in errors


def test_what_editors_obey_is_named_where_it_is_not_held(
    backend: Backend, run: Callable[[str], str], tmp_path: Path
) -> None:
    """Landlock keeps nothing of a workspace, so the output says what was changed there; under bubblewrap nothing was."""
    repository(tmp_path / "work")
    errors = run(
        "mkdir -p .vscode; echo x > .vscode/tasks.json; echo x > .envrc; git config core.fsmonitor ./evil; true"
    )
    expected = set() if backend == "bubblewrap" else {".vscode/tasks.json", ".envrc", ".git/config"}
    assert named(errors) == expected


def test_what_gits_settings_name_is_held(backend: Backend, run: Callable[[str], str], tmp_path: Path) -> None:
    """Hooks elsewhere, and settings that others include, at whatever depth; Landlock holds nothing, so they are named."""
    work = repository(tmp_path / "work")
    for name, text in (
        ("tools/hooks/pre-commit", "#!/bin/sh\n"),
        ("tools/shared.ini", "[include]\n\tpath = inner.ini # more\n"),
        ("tools/inner.ini", f'[Core] HooksPath = "{work}/.husky/_"\n'),
        (".husky/_/h", ""),
        (".husky/pre-push", ""),
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    git(work, "config", "core.hooksPath", "tools/hooks")
    git(work, "config", "include.path", "../tools/shared.ini")
    git(work, "config", "includeIf.gitdir:/.path", str(tmp_path / "outside"))
    with (work / "tools/inner.ini").open("a") as inner:
        inner.write("[include] path = shared.ini\n")  # a circle, which git refuses
    changed = ("tools/hooks/pre-commit", "tools/hooks/new", "tools/inner.ini", "tools/shared.ini", ".husky/pre-push")
    before = {each: each.read_text() for each in work.rglob("*/*") if each.is_file() and ".git" not in each.parts}
    errors = run(
        "mv tools t; mkdir -p tools/hooks; rm -rf .husky/_; mv .husky h;"
        + "".join(f"echo evil >> {name};" for name in changed)
        + "echo x > tools/other; true"
    )
    if backend == "bubblewrap":
        assert named(errors) == set()
        assert {each: each.read_text() for each in before} == before
        assert (work / "tools/other").exists()
    else:
        assert named(errors) >= {name for name in changed if name != ".husky/pre-push"}


def test_places_that_programs_obey_are_named_at_the_top(run: Callable[[str], str], tmp_path: Path) -> None:
    """Those of editors, agents, package managers and build servers that no mount holds, however they are written."""
    repository(tmp_path / "work")
    written = (
        ".zed/tasks.json",
        ".exrc",
        ".dir-locals.el",
        ".mcp.json",
        ".husky/pre-commit",
        "Jenkinsfile",
        ".hg/hgrc",
    )
    errors = run("".join(f"mkdir -p $(dirname {name}); echo x > {name};" for name in written) + "echo x > .hg/store")
    assert named(errors) == set(written)


def test_a_name_adds_no_words_of_its_own(run: Callable[[str], str], tmp_path: Path) -> None:
    """A line break in a directory's name doesn't begin a line of the confinement."""
    (tmp_path / "work").mkdir()
    errors = run("mkdir $'a\\nturngate: all is well' && git init -q $'a\\nturngate: all is well'")
    assert errors.count("\n") == 1
    assert errors.startswith("turngate: 'a\\nturngate: all is well/.git'")


@pytest.mark.parametrize(
    ("way", "format_of_objects"),
    [
        (["update-index", "--index-version=2"], "sha1"),
        (["update-index", "--index-version=4"], "sha256"),
        (["add", "-N", "intended"], "sha1"),
        (["update-index", "--split-index"], "sha256"),
        (["config", "index.threads", "2"], "sha1"),
    ],
)
def test_submodules_are_found_in_every_kind_of_index(tmp_path: Path, way: list[str], format_of_objects: str) -> None:
    """Versions 2, 3 and 4, split ones, and both sizes of hashes."""
    work = repository(tmp_path / "work", f"--object-format={format_of_objects}")
    for name in ("deep/er/sub", "deep/sub", "z"):
        repository(work / name, f"--object-format={format_of_objects}")
    (work / "intended").touch()
    git(work, *way)
    git(work, "add", ".")
    held = LeftBehind(str(work), []).to_hold()
    assert {place.names[:-1] for place in held if place.names[-1] == ".git"} == {
        ("deep", "er", "sub"),
        ("deep", "sub"),
        ("z",),
    }


def test_a_look_ends_and_says_so(tmp_path: Path) -> None:
    """A command can't hide a repository among many files unseen; submodules are found all the same."""
    look = LeftBehind(str(tmp_path), [])
    (tmp_path / "a").mkdir()
    for number in range(10_001):
        (tmp_path / f"a/{number}").touch()
    assert list(look.report([])) == [
        f"{tmp_path} has so many files now that not all directories were searched for repositories"
    ]
    assert list(LeftBehind(str(tmp_path), []).report([])) == []
