from pathlib import Path

import pytest
import sqlalchemy
from support.stores.encryption import encrypted

from turngate import Agent, App, Toolkit
from turngate.approvals_api import health
from turngate.cli.api_server import listen
from turngate.cli.commands.setup.doctor import Finding, examine
from turngate.cli.options import DEFAULT_APP
from turngate.runtime import embedded_temporal
from turngate.runtime.settings import load_settings
from turngate.store import agents
from turngate.store.database import Database


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("TEMPORAL_ADDRESS", "TURNGATE_MODEL", "TURNGATE_OPENAI_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


async def bad(target: str = DEFAULT_APP, **overrides) -> dict[str, str]:
    """What the doctor finds wrong: check → what it says."""
    findings: list[Finding] = []
    settings = load_settings(**{"api_port": embedded_temporal.choose_port(), **overrides})
    returned = await examine(settings, target, probe=False, show=findings.append)
    assert findings == returned
    return {finding.what: finding.text for finding in returned if not finding.good}


async def test_a_fresh_directory_is_in_order(tmp_path: Path):
    """What the first start makes by itself is no fault."""
    assert await bad(data_dir=tmp_path) == {}


async def test_a_data_directory_that_cannot_be_written_is_found(tmp_path: Path):
    """The path is named, and the variable that changes it."""
    (tmp_path / "file").write_text("")
    text = (await bad(data_dir=tmp_path / "file" / "below"))["data directory"]
    assert str(tmp_path / "file") in text
    assert "TURNGATE_DATA_DIR" in text


async def test_i13_a_data_directory_that_was_open_is_reported(tmp_path: Path):
    """It names what other users could read, once: the check closes the directory."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "token").write_text("secret")
    data_dir.chmod(0o755)
    (data_dir / "token").chmod(0o644)
    settings = load_settings(api_port=embedded_temporal.choose_port(), data_dir=data_dir)
    findings = [await examine(settings, DEFAULT_APP, probe=False, show=lambda _: None) for _ in range(2)]
    first, second = ([each for each in some if each.what == "data directory"] for some in findings)
    assert [(each.good, each.warns) for each in (*first, *second)] == [(True, True), (True, False)]
    assert "token" in first[0].text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("elsewhere", "elsewhere does not exist: see TURNGATE_WORKSPACES"),
        ("linked", ". No command starts there: "),
        (".github", ". Not in each itself: "),
        ("plain", " and below"),
    ],
)
async def test_a_workspace_in_which_nothing_can_run_is_reported(tmp_path: Path, name: str, words: str):
    """It isn't there, it holds a link at a place that other programs obey, or it is such a place itself."""
    root = tmp_path / name
    if name != "elsewhere":
        root.mkdir()
    if name == "linked":
        (root / ".git").symlink_to("..")
    settings = load_settings(api_port=embedded_temporal.choose_port(), data_dir=tmp_path / "data", workspaces=(root,))
    findings = await examine(settings, DEFAULT_APP, probe=False, show=lambda _: None)
    (finding,) = [each for each in findings if each.what == "where runs work"]
    assert finding.text.startswith(f"in {root} and below")
    assert words in finding.text
    assert (finding.good, finding.warns) == (True, name != "plain")


async def test_what_is_away_taken_or_missing_is_found_at_once(tmp_path: Path, monkeypatch):
    """Database, port, Temporal and app: each by its name, with its option or variable. A password in a URL is not repeated."""
    temporal = f"127.0.0.1:{embedded_temporal.choose_port()}"
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal)
    url = f"postgresql://u:verysecret@127.0.0.1:{embedded_temporal.choose_port()}/x"
    with listen("127.0.0.1", embedded_temporal.choose_port()) as other:
        port = other.getsockname()[1]
        faults = await bad("nosuchapp:app", data_dir=tmp_path, api_port=port, database_url=url)
    assert "TURNGATE_DATABASE_URL" in faults["database"]
    assert "verysecret" not in str(faults)
    assert str(port) in faults["API port"]
    assert "--port" in faults["API port"]
    assert temporal in faults["Temporal"]
    assert "no module 'nosuchapp'" in faults["app"]


async def test_a_database_that_the_next_start_would_not_open_is_found(tmp_path: Path):
    """One that has no schema, one of before the first release, and an encrypted one without its key; what to do is there."""
    text = (await bad(data_dir=tmp_path, database_url=f"sqlite:///{tmp_path}/other.db"))["database"]
    assert "turngate migrate" in text
    database = Database(load_settings(data_dir=tmp_path).resolved_database_url)
    await database.migrate()
    await encrypted(database)
    assert "TURNGATE_KEY" in (await bad(data_dir=tmp_path))["database"]
    async with database.write() as conn:
        await conn.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = '0006'"))
    await database.close()
    text = (await bad(data_dir=tmp_path))["database"]
    assert "has the schema 0006" in text
    assert "move the data directory away" in text


async def test_a_model_without_its_key_is_found(tmp_path: Path, monkeypatch):
    """OpenAI's own API needs a key; the variable is named."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "keyless_app.py").write_text(
        "from turngate import Agent, App, Toolkit\n"
        "app = App(agents=[Agent(name='a', instructions='', toolkit=Toolkit.of(), model='openai:gpt-5')])\n"
    )
    assert "TURNGATE_OPENAI_API_KEY" in (await bad("keyless_app:app", data_dir=tmp_path))["model"]


async def test_without_an_app_it_looks_at_what_is_there(tmp_path: Path, monkeypatch):
    """The directory's app is named and not imported, and the agents in the store are listed: the demo is not what runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("from turngate import App\nraise RuntimeError\napp = App(agents=[])\n")
    settings = load_settings(api_port=embedded_temporal.choose_port(), data_dir=tmp_path / "data")
    database = Database(f"sqlite:///{tmp_path}/data/turngate.db")
    settings.ensure_data_dir()
    await database.migrate()
    app = App(agents=[Agent(name="clerk", instructions="", toolkit=Toolkit.of(), model="scripted:x")])
    async with database.write() as conn:
        await agents.publish(conn, app, task_queue="q")
    await database.close()
    findings = await examine(settings, None, probe=False, show=lambda _: None)
    assert all(finding.good for finding in findings)
    texts = {finding.what: finding.text for finding in findings}
    assert texts["app"] == "shop:app is in this directory. To check it too: `turngate doctor shop:app`"
    assert texts["agent"].startswith("clerk (scripted:x), published 20")
    assert not any("coder" in finding.text for finding in findings)
    assert {"disk", "clock"} <= texts.keys()


async def test_what_health_finds_is_in_the_doctors_list(tmp_path: Path, monkeypatch):
    """The same line with the same fix as `turngate status` has, without an API."""
    monkeypatch.setattr(health, "LITTLE_ROOM", 2**70)
    monkeypatch.setattr(health, "NO_ROOM", 2**70)
    database = Database(f"sqlite:///{tmp_path}/turngate.db")
    await database.migrate()
    await database.close()
    text = (await bad(data_dir=tmp_path))["disk"]
    assert "Make room: when the disk is full, nothing can be decided" in text
    assert text.endswith("`df -h`")
