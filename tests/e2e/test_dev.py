"""``turngate dev`` from outside: the app changes, breaks and is fixed while a run of it waits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.html_forms import PostedPage
from support.terminal_process import Background, turngate

from turngate.runtime import embedded_temporal


class Dev:
    """`turngate dev`, and a browser that is logged in to it."""

    def __init__(self, process: Background, link: str) -> None:
        self.process = process
        origin = link.partition("/login")[0]
        self.browser = httpx.Client(base_url=origin, headers={"Origin": origin}, follow_redirects=True, timeout=60)
        self.browser.post("/login", data={"link": link.partition("?link=")[2]})

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until something new that was printed matches."""
        return self.process.wait_for(pattern)

    def try_refund(self, amount: int) -> str:
        """Return the playground's page about a refund of this many cents."""
        form = PostedPage(self.browser.get("/playground?agent=support&tool=refund").text).form("json")
        raw = json.dumps({"order_id": "A-100", "amount_cents": amount})
        return self.browser.post("/playground", data={**form.sent, "json": raw}).text


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    assert turngate("init", str(directory), cwd=tmp_path).returncode == 0
    return directory


@pytest.fixture
def dev(shop: Path) -> Iterator[Dev]:
    process = Background("dev", "my_app:app", "--port", str(embedded_temporal.choose_port()), cwd=shop)
    process.wait_for("Only this machine can reach it")
    link = process.wait_for(r"http://\S+/login\?link=\S+").group()
    process.wait_for("Start a run")
    yield Dev(process, link)
    process.stop()


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_run_survives_a_change_a_mistake_and_its_fix(shop: Path, dev: Dev) -> None:
    """A change is loaded in a fresh process. A mistake is shown by line, and the former version runs on; its fix is loaded."""
    follower = Background("run", "The lamp of order A-100 arrived broken.", cwd=shop)
    try:
        run_id = follower.wait_for(r"run_\w+").group()
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        change(shop / "my_app.py", 'f"refund-{', 'f"changed-{')
        dev.wait_for(r"reloaded after a change of my_app\.py: agent support")
        change(shop / "policy.toml", "verdict", "verdct")
        dev.wait_for(r"policy\.toml:\d+: rule\.0\.verdct: there is no such key\. Did you mean 'verdict'\?")
        dev.wait_for("the former version runs on")
        assert "there is no such key. Did you mean" in dev.browser.get("/playground").text
        assert json.loads(turngate("show", request_id, "--json", cwd=shop).stdout)["status"] == "pending"
        change(shop / "policy.toml", "verdct", "verdict")
        dev.wait_for("reloaded after a change of policy.toml")
        asks, allowed = dev.try_refund(7_500), dev.try_refund(100)
        assert ('verdict-ask">' in asks, "What people would see" in asks) == (True, True), asks
        assert ('verdict-allow">' in allowed, "What people would see" in allowed) == (True, False), allowed
        assert [item["id"] for item in json.loads(turngate("requests", "--json", cwd=shop).stdout)] == [request_id]
        decided = turngate("decide", request_id, "approve", cwd=shop)
        assert decided.returncode == 0, decided.stderr
        follower.wait_for("75.00 was refunded")
        assert '"changed-' in turngate("export", run_id, cwd=shop).stdout
    finally:
        follower.stop()
