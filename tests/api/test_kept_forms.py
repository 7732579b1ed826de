"""What someone typed outlives a session that ends: without a script, the answer has it, and shows the form with it again."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from support.api.store_app import desk_on
from support.pages.html_forms import PostedPage

from turngate import Agent, App, Toolkit
from turngate.store import agents
from turngate.store.database import Database

HEADERS = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
TEXT = 'The "amount" is thrice\r\nthat of <the> invoice.'
LINE = 'The "amount" is thrice that of <the> invoice.'
FORMS: Mapping[str, Mapping[str, str]] = {
    "/requests/{request}": {"action": "reject", "reject-message": TEXT},
    "/requests/{request}?list=risk%3Dhigh&whole=1": {"action": "respond", "respond-message": TEXT},
    "/requests/{request}/comments": {"comment": TEXT},
    "/requests/bulk/decide": {"action": "reject", "message": TEXT, "pick-rq": "d"},
    "/runs/new": {"agent": "agent", "input": TEXT},
    "/runs/run_1": {"action": "message", "input": TEXT, "while_running": "queue"},
    "/runs/run_1?act=interrupt": {"action": "interrupt", "reason": TEXT},
    "/schedules/new": {"name": "daily", "input": TEXT},
    "/policy": {"source": TEXT, "comment": "why"},
    "/policy/rule": {"action": "more", "name": "mine", "comment": TEXT},
    "/retention/holds": {"target": "conv_1", "reason": LINE},
}
"""Where each form of the pages with a text goes → what it sends besides its token."""


@pytest.mark.parametrize("path", FORMS)
async def test_a_form_is_shown_again_with_what_was_typed(sqlite: Database, path: str) -> None:
    """The button of the 401 page leads to the form, with the text in its control and a new token; nothing is done."""
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        await desk.put(run)
        async with sqlite.write() as conn:
            agent = Agent(name="agent", instructions="", toolkit=Toolkit.of(), model="scripted:x")
            await agents.publish(conn, App(agents=[agent]), task_queue="q")
        path, sent = path.format(request="rq"), {"csrf_token": "of-the-ended-session", **FORMS[path]}
        stranger = desk._client()
        ended = await stranger.post(path, data=sent, headers=HEADERS)
        assert ended.status_code == 401
        assert "Your session ended" in ended.text
        assert 'href="/login" target="_blank"' in ended.text
        again = next(each for each in PostedPage(ended.text).forms if each.sent.get("csrf_token"))
        assert again.attributes["action"] == path
        assert {**again.sent, "csrf_token": ""} == {**sent, "csrf_token": ""}
        before = await desk.events()
        ann = await desk.person("ann", "admin")
        answer = await ann.post(path, data=again.sent, headers=HEADERS)
        assert "nothing was sent yet" in answer.text.lower()
        controls = [value for form in PostedPage(answer.text).forms for value in form.sent.values()]
        assert any(each in controls for each in (TEXT, LINE))
        assert "of-the-ended-session" not in controls
        assert [each for each in await desk.events() if each[0] != "request.viewed"] == before


async def test_no_other_site_fills_in_a_form(sqlite: Database) -> None:
    """What another site posts isn't kept, nor is a password; and an API's answer is a problem document."""
    async with desk_on(sqlite) as desk:
        stranger = desk._client()
        for headers in (
            {**HEADERS, "Sec-Fetch-Site": "cross-site"},
            {"Accept": "text/html", "Origin": "https://evil.example"},
        ):
            answer = await stranger.post("/runs/new", data={"csrf_token": "x", "input": TEXT}, headers=headers)
            assert answer.status_code == 401
            assert "thrice" not in answer.text
        answer = await stranger.post(
            "/account/password", data={"csrf_token": "x", "current": "s3cret"}, headers=HEADERS
        )
        assert answer.status_code == 401
        assert "s3cret" not in answer.text
        answer = await stranger.post(
            "/runs/new", data={"csrf_token": "x", "input": TEXT}, headers={**HEADERS, "Accept": "*/*"}
        )
        assert answer.headers["content-type"] == "application/problem+json"
        crowd = {"csrf_token": "x", **{f"f{number}": "" for number in range(3_000)}}
        answer = await stranger.post("/runs/new", data=crowd, headers=HEADERS)
        assert answer.status_code == 401
        assert not re.findall('name="f1"', answer.text)
