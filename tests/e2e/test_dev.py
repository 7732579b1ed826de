"""``turngate dev`` from outside: the app changes, breaks and is fixed while a run of it waits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.html_forms import PostedPage
from support.scrapes import Scrape, get
from support.terminal_process import DEADLINE_SECONDS, Background, InTerminal, turngate

from turngate.runtime import embedded_temporal


class Dev:
    """`turngate dev`, and a browser that is logged in to it."""

    def __init__(self, process: Background, link: str, of_api: int, of_worker: int) -> None:
        self.process, self.of_api, self.of_worker = process, of_api, of_worker
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

    def script(self, run_id: str) -> str:
        """Return the script's page about a run."""
        return self.browser.get(f"/playground/script?run={run_id}").text

    def press(self, page: str, action: str) -> str:
        """Press a button of the script's page."""
        return self.browser.post("/playground/script", data=PostedPage(page).form(action).sent).text


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    assert turngate("init", str(directory), cwd=tmp_path).returncode == 0
    return directory


def two_ports() -> int:
    """A free port whose next one is free, too."""
    while not embedded_temporal.is_free((port := embedded_temporal.choose_port()) + 1):
        continue
    return port


@pytest.fixture
def dev(shop: Path) -> Iterator[Dev]:
    ports = ["--port", str(embedded_temporal.choose_port()), "--metrics-port", str(two_ports())]
    process = Background("dev", "my_app:app", *ports, cwd=shop)
    process.wait_for("Only this machine can reach it")
    link = process.wait_for(r"http://\S+/login\?link=\S+").group()
    metrics = process.wait_for(r"Metrics +http://127\.0\.0\.1:(\d+)/metrics \(API\), \S+:(\d+)/metrics \(worker\)")
    process.wait_for("Start a run")
    yield Dev(process, link, int(metrics.group(1)), int(metrics.group(2)))
    process.stop()


def taken_in(page: str) -> list[tuple[int, str]]:
    """Return the entries of a script's page that a run took, or takes next."""
    entries = page.partition('id="entries-title"')[2].split("<li>")[1:]
    marks = (re.findall(r'<span class="chip">(step \d+|next)</span>', entry) for entry in entries)
    return [(number, mark) for number, of_entry in enumerate(marks) for mark in of_entry]


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
        of_api, of_worker = (Scrape.of(get(port)[1]) for port in (dev.of_api, dev.of_worker))
        assert of_api.total("turngate_decisions_total", verb="approve") == 1
        assert of_worker.total("turngate_executions_finished_total", tool="refund", outcome="succeeded") == 1
        assert "temporal_worker_task_slots_available" in of_worker.names - of_api.names
    finally:
        follower.stop()


def test_a_run_continues_one_answer_at_a_time(shop: Path, dev: Dev) -> None:
    """Each answer of the scripted model pauses the run before a call of it starts; the page says which entry it took."""
    page = dev.press(dev.browser.get("/playground/script?agent=support").text, "step")
    assert "Pause every run" not in page
    change(shop / "my_app.py", 'f"refund-{', 'f"changed-{')  # the next worker keeps the pace
    dev.wait_for(r"reloaded after a change of my_app\.py")
    follower = Background("run", "The lamp of order A-100 arrived broken.", cwd=shop)
    try:
        run_id = follower.wait_for(r"run_\w+").group()
        follower.wait_for("turngate dev holds the run")
        # The run is paused before its answer is stored.
        deadline = time.monotonic() + DEADLINE_SECONDS
        while taken_in(page := dev.script(run_id)) != [(0, "step 1"), (1, "next")]:
            assert time.monotonic() < deadline, page
            time.sleep(0.1)
        dev.press(page, "resume")
        follower.wait_for("turngate dev holds the run")
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        assert taken_in(dev.script(run_id)) == [(0, "step 1"), (1, "step 2"), (2, "next"), (3, "next"), (4, "next")]
        assert turngate("decide", request_id, "approve", cwd=shop).returncode == 0
        dev.press(dev.script(run_id), "resume")
        follower.wait_for(r"75\.00 was refunded")
        follower.process.wait(DEADLINE_SECONDS)
        assert taken_in(dev.script(run_id)) == [(0, "step 1"), (1, "step 2"), (2, "step 3")]
    finally:
        follower.stop()


OF_A_CODER = """\
from turngate import Agent, App
from turngate.toolkits.coding import coding_toolkit

app = App(agents=[Agent(name="coder", instructions="", toolkit=coding_toolkit(), model="scripted:coder.yaml")])
"""
WRITES_A_MODULE = """\
responses:
  - calls:
      - tool: bash
        input:
          command: echo "open('ran', 'w')" > helper.py; mv attic my_app
  - text: Done.
"""


def test_what_a_run_has_changed_is_loaded_once_a_person_has_accepted_it(tmp_path: Path) -> None:
    """Its file is named, an older one that it moved there, too; the former version runs on until Enter is pressed.

    What a person wrote is loaded as it is.
    """
    (tmp_path / "my_app.py").write_text(OF_A_CODER)
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic/__init__.py").write_text("open('ran', 'w')\n")
    (tmp_path / "coder.yaml").write_text(WRITES_A_MODULE)
    dev = InTerminal("dev", "my_app:app", "--port", str(embedded_temporal.choose_port()), cwd=tmp_path)
    dev.wait_for("Start a run")
    try:
        follower = Background("run", "Help.", "--workspace", ".", cwd=tmp_path)
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        assert turngate("decide", request_id, "approve", cwd=tmp_path).returncode == 0
        follower.wait_for(r"Done\.")
        dev.press("\n")  # before it is asked, it is no answer
        (tmp_path / "my_app.py").write_text("import helper\n" + OF_A_CODER)
        dev.wait_for(r"my_app/__init__\.py may have been changed by a run")
        dev.wait_for("press Enter to load it")
        (tmp_path / "my_app").rename(tmp_path / "attic")
        (tmp_path / "my_app.py").write_text("import helper\n\n" + OF_A_CODER)
        dev.wait_for(r"helper\.py may have been changed by a run")
        dev.wait_for("press Enter to load it")
        assert not (tmp_path / "ran").exists()
        dev.press("\n")
        dev.wait_for(r"reloaded after a change of helper\.py")
        assert (tmp_path / "ran").exists()
        (tmp_path / "own.py").write_text("")
        (tmp_path / "my_app.py").write_text("import helper, own\n" + OF_A_CODER)
        dev.wait_for(r"reloaded after a change of my_app\.py")
    finally:
        dev.press("\x03")
        dev.exit_code()
