"""``turngate notify``: on a store and a receiver of its own, without a running API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result
from support.servers.notification_receivers import Receiver, answer
from typer.testing import CliRunner

from turngate.cli import terminal
from turngate.cli.api_settings import configured_channels, link_warning
from turngate.cli.main import app
from turngate.runtime.settings import load_settings

SECRET = "whsec_" + "QUJD" * 8


@pytest.fixture
def environment(tmp_path: Path, sqlite_template: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notifications file with one webhook, named by the environment, and a data directory with a store."""
    (tmp_path / "turngate.db").write_bytes(sqlite_template.read_bytes())
    file = tmp_path / "notify.toml"
    url = receiver.url.partition("?")[0]
    file.write_text(
        f'[[channel]]\nname = "ops"\ntype = "webhook"\nurl = "{url}"\nallow_private = true\nsecret_env = "HOOK_SECRET"\n'
        'tools = ["pay_*"]\nrisk_at_least = "medium"\n'
    )
    file.with_name("pigeon.toml").write_text(file.read_text().replace("webhook", "pigeon"))
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TURNGATE_NOTIFICATIONS", str(file))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    return file


async def notify(*words: str) -> Result:
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    outcome = await asyncio.to_thread(CliRunner().invoke, app, ["notify", *words])
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    return outcome


async def test_check_lists_channels_and_their_events(environment: Path, receiver: Receiver):
    """Nothing is sent; unusable links get a warning; no secret is printed."""
    good = await notify("check")
    assert good.exit_code == 0
    assert good.output.startswith("ops (webhook): request.opened, request.reminded")
    assert "; of tools pay_*; of medium risk or more; digest after 10 s" in good.output
    assert "set TURNGATE_PUBLIC_URL" in good.output
    assert SECRET not in good.output
    bad = await notify("check", str(environment.with_name("pigeon.toml")))
    assert bad.exit_code == 2
    assert "channel 'ops': type is one of" in bad.output
    assert receiver.connections == 0


async def test_a_channel_is_tried_read_about_and_tried_again(environment: Path, receiver: Receiver):
    """``test`` sends and prints the outcome; ``log`` shows it; ``retry`` makes a failed delivery due."""
    receiver.answers = [answer(200, "ok"), answer(404, "no\x1b[31m such hook")]
    sent, refused = await notify("test", "ops"), await notify("test", "ops")
    assert (sent.exit_code, refused.exit_code) == (0, 1)
    assert ": 200 Said: ok" in sent.output
    assert "404 Said: no⟨U+001B⟩[31m such hook" in refused.output
    assert (await notify("test", "unknown")).exit_code == 1

    listed = await notify("log")
    rows = [line.split("\t") for line in listed.output.splitlines()]
    assert [(row[1], row[2], row[3], row[5]) for row in rows] == [
        ("ops", "failed", "1", "Test message"),
        ("ops", "delivered", "1", "Test message"),
    ]
    assert "\x1b" not in listed.output
    (failed,) = json.loads((await notify("log", "--status", "failed", "--channel", "ops", "--json")).output)
    assert failed["tries"][0]["answer"].startswith("404 Said")

    assert (await notify("retry", failed["id"])).exit_code == 0
    assert json.loads((await notify("log", "--status", "waiting", "--json")).output)[0]["id"] == failed["id"]
    delivered = rows[1][0]
    assert "this delivery was delivered" in (await notify("retry", delivered)).output
    assert "there is no delivery 'ntf_x'" in (await notify("retry", "ntf_x")).output


async def test_without_a_file_notifications_are_off(environment: Path, monkeypatch: pytest.MonkeyPatch):
    """Serving needs no file; the commands say what to set."""
    monkeypatch.setenv("TURNGATE_NOTIFICATIONS", "")
    assert configured_channels(load_settings()) == ()
    outcome = await notify("check")
    assert (outcome.exit_code, "set TURNGATE_NOTIFICATIONS" in outcome.output) == (2, True)


def test_links_go_to_the_public_url(environment: Path, monkeypatch: pytest.MonkeyPatch):
    """TURNGATE_PUBLIC_URL if it is set, else where this machine reaches the API."""
    assert link_warning(load_settings()) is not None
    for here, host in ((True, "127.9.9.9"), (True, "[::1]"), (False, "127.0.0.1.example.com")):
        monkeypatch.setenv("TURNGATE_PUBLIC_URL", f"http://{host}:8321")
        assert (link_warning(load_settings()) is not None) == here
    monkeypatch.setenv("TURNGATE_PUBLIC_URL", "https://gate.example.com/")
    settings = load_settings()
    assert link_warning(settings) is None
    assert configured_channels(settings)[0].sender.links.base == "https://gate.example.com"
