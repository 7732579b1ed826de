"""Which app a command takes that names none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turngate.cli.app_choice import apps_here, require_app
from turngate.cli.options import DEFAULT_APP
from turngate.domain.errors import ConfigurationError

APP = "from turngate import App\nraise RuntimeError('imported')\napp = App(agents=[])\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_directory_without_an_app_gets_the_built_in_agent(here: Path) -> None:
    """What looks alike is no app: another library's, a test's, a broken file's, one that is too large, not there or no file.

    Looking ends, whatever an agent has put there.
    """
    (here / "other.py").write_text("from shiny import App\napp = App()\n")
    (here / "test_shop.py").write_text(APP)
    (here / "broken.py").write_text(APP + "(")
    (here / "deep.py").write_text(APP + "x = " + "(" * 5_000)
    (here / "binary.py").write_bytes(b"turngate \xff")
    (here / "no-module.py").write_text(APP)
    (here / "large.py").write_text(APP + "#" * 300_000)
    (here / "gone.py").symlink_to(here / "nowhere")
    (here / "folder.py").mkdir()
    os.mkfifo(here / "waits.py")
    (here / "endless.py").symlink_to("/dev/zero")
    (here / "helper.py").write_text(
        "from turngate import App\ndef build() -> App:\n    app = App(agents=[])\n    return app\n"
    )
    assert apps_here() == []
    assert require_app(None, "turngate up") == DEFAULT_APP


def test_a_directorys_own_app_is_named_and_nothing_is_served(here: Path) -> None:
    """A shell agent in its place would be a surprise. Its module is read and not imported."""
    (here / "shop.py").write_text(APP)
    with pytest.raises(ConfigurationError) as refused:
        require_app(None, "turngate up")
    assert "this directory has one: use `turngate up shop:app`" in str(refused.value)
    assert f"`turngate up {DEFAULT_APP}`" in str(refused.value)


def test_apps_in_packages_and_with_an_annotation_count(here: Path) -> None:
    """Each is named as a command takes it."""
    package = here / "desk"
    package.mkdir()
    (package / "__init__.py").write_text("import turngate\ndesk = turngate.App(agents=[])\n")
    (package / "more.py").write_text("from turngate import App\nmine: App = build()\n")
    (here / "plain").mkdir()
    (here / "plain" / "app.py").write_text(APP)
    assert apps_here() == ["desk.more:mine", "desk:desk"]
    with pytest.raises(ConfigurationError, match=r"has some: use `turngate worker desk\.more:mine` or"):
        require_app(None, "turngate worker")


def test_an_app_that_is_named_is_taken(here: Path) -> None:
    """The built-in agent too."""
    (here / "shop.py").write_text(APP)
    assert require_app("shop:app", "turngate up") == "shop:app"
    assert require_app(DEFAULT_APP, "turngate up") == DEFAULT_APP
