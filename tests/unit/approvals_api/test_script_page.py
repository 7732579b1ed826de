"""The page of a script in ``turngate dev``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.api.playground import ORIGIN, Served, playground_on
from support.pages.html_forms import PostedPage

from turngate.models import ScriptedModel
from turngate.store.database import Database

SCRIPT = """\
responses:
  - calls: [{tool: refund, input: {order_id: "<script>alert(1)</script>"}}]
  - {text: "Done."}
"""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    database = Database(f"sqlite:///{tmp_path}/store.db")
    await database.migrate()
    async with playground_on(database) as on:
        on.playground.scripts = {"support": [ScriptedModel.from_text(SCRIPT, "s.yaml")]}
        yield on
    await database.close()


async def page_of(served: Served, **more: str) -> str:
    answer = await served.client.get("/playground/script", params={"agent": "support", **more})
    assert answer.status_code == 200, answer.text
    return answer.text


async def post(served: Served, **sent: str) -> httpx.Response:
    headers = {"origin": ORIGIN}
    return await served.client.post("/playground/script", data=sent, headers=headers, follow_redirects=True)


async def test_the_entries_are_listed_and_escaped(served: Served) -> None:
    """Each with its place and line. The playground links the page."""
    page = await page_of(served)
    assert "responses[0] (s.yaml, line 2)" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "/playground/script?agent=support" in (await served.client.get("/playground")).text


async def test_each_script_of_an_agent_can_be_chosen(served: Served) -> None:
    """The model's own comes first; a fallback's has a link. A button leads back to the same script."""
    spare = ScriptedModel.from_text(SCRIPT.replace("Done.", "Spare."), "spare.yaml")
    served.playground.scripts = {"support": [*served.playground.scripts["support"], spare]}
    first, second = await page_of(served), await page_of(served, script=spare.name)
    assert ("Done." in first, "Spare." in first, "Done." in second, "Spare." in second) == (True, False, False, True)
    assert f"script={spare.name.replace(':', '%3A')}" in first
    assert "Spare." in (await post(served, **PostedPage(second).form("step").sent)).text


async def test_the_pace_is_changed_by_the_pages_form_alone(served: Served) -> None:
    """The button turns it on, and the other one off again. Without the page's token nothing changes."""
    refused = await post(served, agent="support", action="step")
    assert (refused.status_code, served.playground.one_step_at_a_time) == (403, False)
    on = await post(served, **PostedPage(await page_of(served)).form("step").sent)
    assert (on.status_code, served.playground.one_step_at_a_time) == (200, True)
    await post(served, **PostedPage(on.text).form("free").sent)
    assert served.playground.one_step_at_a_time is False


async def test_an_agent_without_a_script_has_a_page_and_an_unknown_one_has_none(served: Served) -> None:
    """The page says that there is no script. An unknown run has no page either."""
    served.playground.scripts = {}
    assert "No model of this agent plays a script" in await page_of(served)
    for params in ({"agent": "none"}, {"agent": "support", "run": "run_none"}, {}):
        assert (await served.client.get("/playground/script", params=params)).status_code == 404
