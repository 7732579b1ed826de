"""``turngate dev`` from outside: the app changes, breaks and is fixed while runs of it wait. One process for all of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.pages.html_forms import PostedPage
from support.programs.terminal_process import DEADLINE_SECONDS, Background, InTerminal, turngate
from support.project.scrapes import Scrape, get

from turngate.runtime import embedded_temporal


class Dev:
    """`turngate dev`, and a browser that is logged in to it."""

    def __init__(self, process: InTerminal, link: str, of_api: int, of_worker: int) -> None:
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


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dev") / "shop"
    assert turngate("init", str(directory), cwd=directory.parent).returncode == 0
    (directory / "coder.yaml").write_text(WRITES_A_MODULE)
    return directory


def two_ports() -> int:
    """A free port whose next one is free, too."""
    while not embedded_temporal.is_free((port := embedded_temporal.choose_port()) + 1):
        continue
    return port


@pytest.fixture(scope="module")
def dev(shop: Path) -> Iterator[Dev]:
    ports = ["--port", str(embedded_temporal.choose_port()), "--metrics-port", str(two_ports())]
    process = InTerminal("dev", "my_app:app", *ports, cwd=shop)
    process.wait_for("Only this machine can reach it")
    link = process.wait_for(r"http://\S+/login\?link=\S+").group()
    metrics = process.wait_for(r"Metrics +http://127\.0\.0\.1:(\d+)/metrics \(API\), \S+:(\d+)/metrics \(worker\)")
    process.wait_for("Start a run")
    yield Dev(process, link, int(metrics.group(1)), int(metrics.group(2)))
    process.press("\x03")
    process.exit_code()


def taken_in(page: str) -> list[tuple[int, str]]:
    """Return the entries of a script's page that a run took, or takes next."""
    entries = page.partition('id="entries-title"')[2].split("<li>")[1:]
    marks = (re.findall(r'<span class="chip">(step \d+|next)</span>', entry) for entry in entries)
    return [(number, mark) for number, of_entry in enumerate(marks) for mark in of_entry]


def change(file: Path, old: str, new: str, end: str = "") -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new) + end, encoding="utf-8")


WRITES_A_MODULE = """\
responses:
  - calls:
      - tool: bash
        input:
          command: echo "open('ran', 'w')" > helper.py
  - text: Done.
"""
A_CODER = """
from turngate.toolkits.coding import coding_toolkit
coder = Agent(name="coder", instructions="", toolkit=coding_toolkit(), model="scripted:coder.yaml")
app = App(agents=[*app.agents, coder], services=services, policy="policy.toml")
"""


def test_a_run_survives_a_mistake_its_fix_and_a_change_one_answer_at_a_time(shop: Path, dev: Dev) -> None:
    """A mistake is shown by line, and the former version runs on; its fix and a change are loaded in a fresh process.

    Each answer of the scripted model pauses the run before a call of it starts; the page says which entry it took.
    """
    page = dev.press(dev.browser.get("/playground/script?agent=support").text, "step")
    assert "Pause every run" not in page
    follower = Background("run", "The lamp of order A-100 arrived broken.", cwd=shop)
    try:
        run_id = follower.wait_for(r"run_\w+").group()
        follower.wait_for("turngate dev holds the run")
        # The run is paused before its answer is stored.
        deadline = time.monotonic() + DEADLINE_SECONDS
        while taken_in(page := dev.script(run_id)) != [(0, "step 1"), (1, "next")]:
            assert time.monotonic() < deadline, page
            time.sleep(0.1)

        change(shop / "policy.toml", "verdict", "verdct")
        dev.wait_for(r"policy\.toml:\d+: rule\.0\.verdct: there is no such key\. Did you mean 'verdict'\?")
        dev.wait_for("the former version runs on")
        assert "there is no such key. Did you mean" in dev.browser.get("/playground").text
        dev.press(page, "resume")
        follower.wait_for("turngate dev holds the run")
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        assert taken_in(dev.script(run_id)) == [(0, "step 1"), (1, "step 2"), (2, "next"), (3, "next"), (4, "next")]

        change(shop / "my_app.py", 'f"refund-{', 'f"changed-{', A_CODER)
        change(shop / "policy.toml", "verdct", "verdict")
        dev.wait_for(r"reloaded after a change of .*policy\.toml: agent support")
        asks, allowed = dev.try_refund(7_500), dev.try_refund(100)
        assert ('verdict-ask">' in asks, "What people would see" in asks) == (True, True), asks
        assert ('verdict-allow">' in allowed, "What people would see" in allowed) == (True, False), allowed
        assert [item["id"] for item in json.loads(turngate("requests", "--json", cwd=shop).stdout)] == [request_id]
        decided = turngate("decide", request_id, "approve", cwd=shop)
        assert decided.returncode == 0, decided.stderr
        dev.press(dev.script(run_id), "resume")
        follower.wait_for(r"75\.00 was refunded")
        follower.exit_code()
        assert taken_in(dev.script(run_id)) == [(0, "step 1"), (1, "step 2"), (2, "step 3")]
        assert '"changed-' in turngate("export", run_id, cwd=shop).stdout
        of_api, of_worker = (Scrape.of(get(port)[1]) for port in (dev.of_api, dev.of_worker))
        assert of_api.total("turngate_decisions_total", verb="approve") == 1
        assert of_worker.total("turngate_executions_finished_total", tool="refund", outcome="succeeded") == 1
        assert "temporal_worker_task_slots_available" in of_worker.names - of_api.names
    finally:
        follower.stop()


def test_what_a_run_has_changed_is_loaded_once_a_person_has_accepted_it(shop: Path, dev: Dev) -> None:
    """Its file is named, and the former version runs on until Enter is pressed. What a person wrote is loaded as it is.

    The worker that the change before has started holds runs, too: it got the pace.
    """
    follower = Background("run", "Help.", "--agent", "coder", "--workspace", ".", cwd=shop)
    try:
        run_id = follower.wait_for(r"run_\w+").group()
        follower.wait_for("turngate dev holds the run")
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        assert turngate("decide", request_id, "approve", cwd=shop).returncode == 0
        dev.press(dev.script(run_id), "resume")
        follower.wait_for(r"Done\.")
    finally:
        follower.stop()
    dev.process.press("\n")  # before it is asked, it is no answer
    (shop / "own.py").write_text("")
    change(shop / "my_app.py", A_CODER, A_CODER, "import own, helper\n")
    dev.wait_for(r"helper\.py may have been changed by a run")
    dev.wait_for("press Enter to load it")
    assert not (shop / "ran").exists()
    dev.process.press("\n")
    dev.wait_for(r"reloaded after a change of helper\.py")
    assert (shop / "ran").exists()
