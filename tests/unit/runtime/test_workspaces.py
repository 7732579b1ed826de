"""Where runs may work: below the listed directories by real path, and never in or around Turngate's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngate.runtime.workspaces import ANYWHERE, Workspaces
from turngate.toolkits.private_files import PrivateFiles


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "data"
    (path / "logs").mkdir(parents=True)
    return path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "srv" / "shop"
    (path / "src").mkdir(parents=True)
    return path


def around(data_dir: Path, *roots: Path) -> Workspaces:
    private = PrivateFiles()
    private.add(directories=[data_dir])
    return Workspaces(roots=roots, private=private)


def test_a_listed_directory_and_what_is_below_may_be_worked_in(data_dir: Path, shop: Path, tmp_path: Path) -> None:
    """By the real path: a symlink from elsewhere that leads there is as good."""
    workspaces = around(data_dir, tmp_path / "other", shop)
    (tmp_path / "link").symlink_to(shop)
    for place in (shop, shop / "src", shop / "src" / "..", tmp_path / "link", tmp_path / "link" / "src"):
        assert workspaces.refusal(str(place)) is None


def test_i13_outside_the_listed_directories_is_refused(data_dir: Path, shop: Path, tmp_path: Path) -> None:
    """A neighbour whose name begins alike, a way up and a symlink that leads out; the text says the fix."""
    workspaces = around(data_dir, shop)
    (tmp_path / "srv" / "shop2").mkdir()
    (shop / "out").symlink_to(tmp_path / "srv")
    for place in (
        tmp_path / "srv" / "shop2",
        shop / "..",
        shop / "out",
        shop / "out" / "shop2",
        "/",
        "/proc/self",
        "/etc",
    ):
        assert "TURNGATE_WORKSPACES" in (workspaces.refusal(str(place)) or ""), place


def test_i13_no_link_is_followed_below_a_listed_directory(data_dir: Path, shop: Path) -> None:
    """There an agent can make one, and turn it elsewhere after it was judged: also one that leads to a listed directory."""
    workspaces = around(data_dir, shop)
    (shop / "link").symlink_to("src")
    for place in (shop / "link", shop / "src" / ".." / "link", shop / "link" / ".."):
        assert "is a link" in (workspaces.refusal(str(place)) or ""), place


def test_i13_turngates_own_directories_are_refused_below_any_root(data_dir: Path, shop: Path, tmp_path: Path) -> None:
    """The data directory, what lies in it and what holds it, by any name; and what shows processes."""
    workspaces = around(data_dir, Path("/"))
    (tmp_path / "link").symlink_to(data_dir)
    for place in (
        data_dir,
        data_dir / "logs",
        data_dir.parent,
        tmp_path,
        Path("/"),
        tmp_path / "link",
        tmp_path / "link" / "logs",
    ):
        assert "TURNGATE_DATA_DIR" in (workspaces.refusal(str(place)) or ""), place
    for place in ("/proc", "/proc/self", "/proc/self/fd", "/sys"):
        assert "processes or devices" in (workspaces.refusal(place) or ""), place
    assert workspaces.refusal(str(shop)) is None


def test_i13_a_directory_that_other_programs_obey_is_refused(data_dir: Path, shop: Path, tmp_path: Path) -> None:
    """Where a run worked there, no path and no command would name the place any more. General directories are free."""
    workspaces = around(data_dir, tmp_path)
    for place in (
        ".git",
        ".git/hooks",
        "lib/.GIT/modules/x",
        ".github/workflows",
        ".vscode",
        "a/.husky/_",
        ".circleci",
    ):
        (shop / place).mkdir(parents=True)
        assert "other programs obey" in (workspaces.refusal(str(shop / place)) or ""), place
    (tmp_path / "link").symlink_to(shop / ".git")
    assert "'.git'" in (workspaces.refusal(str(tmp_path / "link/hooks")) or "")
    for part in ("HEAD", "objects", "refs", "hooks/below"):
        (shop / "bare" / part).mkdir(parents=True)
    for place in ("bare/hooks", "bare/hooks/below"):
        assert f"lies in the repository '{shop}/bare', whose files git obeys" in (
            workspaces.refusal(str(shop / place)) or ""
        )
    for place in ("bare", ".config/app", ".local/share/app", "shop.git", ".cache", "git", ".github.io"):
        (shop / place).mkdir(parents=True, exist_ok=True)
        assert workspaces.refusal(str(shop / place)) is None, place


def test_i13_a_directory_that_holds_an_sqlite_store_is_refused(tmp_path: Path, shop: Path) -> None:
    """Where TURNGATE_DATABASE_URL names a file outside the data directory, too; its neighbours are free."""
    private = PrivateFiles()
    (tmp_path / "stores").mkdir()
    private.add(databases=[tmp_path / "stores" / "turngate.db"])
    workspaces = Workspaces(roots=(tmp_path,), private=private)
    for place in (tmp_path, tmp_path / "stores"):
        assert "database" in (workspaces.refusal(str(place)) or "")
    assert workspaces.refusal(str(shop)) is None


def test_without_a_list_no_run_has_a_workspace(data_dir: Path, shop: Path) -> None:
    """Separate processes list none by themselves; the text says how to."""
    assert "set TURNGATE_WORKSPACES" in (around(data_dir).refusal(str(shop)) or "")
    assert "set TURNGATE_WORKSPACES" in (Workspaces().refusal(str(shop)) or "")
    assert ANYWHERE.refusal(str(shop)) is None
