"""What a person reads when Turngate refuses an answer: words that say what to do, and their own text still in place."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta

import httpx
import pytest
from support.api.api_server import Api, serving
from support.programs.tui_person import person_at
from textual.widgets import Input

from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.settings import ApiSettings
from turngate.client.responses import check
from turngate.frontends.tui.problems import problem_words
from turngate.store.access import tokens


@pytest.mark.exhaustive
async def test_a_late_decision_says_who_was_first_or_what_ended(api: Api) -> None:
    """409 names who decided and when, 410 that the run ended; what was typed stays, in the dialog and after it."""
    taken, gone = await api.gated("pay 5"), await api.gated("pay 6")
    async with person_at(api, size=(120, 30)) as person:
        await person.sees("2 wait")
        await person.opens()
        await person.press("r")
        await person.dialog_field(Input).fill("my reason")
        assert (await api.decide(taken, "reject", message="theirs")).status_code == 200
        await person.sees("What you typed stays here")
        await person.press("enter")
        screen = await person.sees(f"ada-{api.name} was first: rejected it")
        words = " ".join(screen.replace("│", " ").split())
        assert re.search(r"ago, at [0-9 :-]+[+-][0-9]{2}:[0-9]{2}\. Yours does not count\.", words)
        assert await person.dialog_field(Input).text() == "my reason"
        await person.press("escape")
        await person.press("n")
        await person.sees_ready('"cents": 6')
        await person.press("e")
        await person.put("field-0", "600")
        stop = await api.operator.post(f"/api/v1/runs/{gone['run_id']}/interrupt", json={"reason": "x"})
        assert stop.status_code in {200, 202}
        await person.sees("What you typed stays here")
        await person.press("ctrl+s")
        await person.sees("Its run has ended, and the request with it")
        assert (await person.at("field-0")).held == "600"
        await person.press("escape")
        await person.sees("cancelled: the run ended before anyone answered")
        assert person.app.session.forms[gone["id"], "edit"].typed["field-0"] == "600"


@pytest.mark.exhaustive
async def test_a_token_without_the_right_to_decide_says_so(api: Api) -> None:
    """A token that may only read says so before its owner types; one that is revoked meanwhile says what to do."""
    request = await api.gated("pay 5")
    async with person_at(api, size=(120, 30), name="looker", scopes=["requests:read"]) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.sees("You cannot decide this: your token may look, and not decide")
        await person.press("r")
        await person.dialog_field(Input).fill("because")
        await person.press("enter")
        await person.sees("Your token may not do this")
        screen = await person.sees("it needs the scope requests:decide")
        assert "Not decided" in screen
        assert await person.dialog_field(Input).text() == "because"
        async with api.stack.database.write() as conn:
            assert await tokens.revoke(conn, by="boss", name="looker")
        await person.press("enter")
        await person.sees("Turngate does not accept this token (any more)")
        await person.sees("turngate token NAME --scope")
        assert await person.dialog_field(Input).text() == "because"
    assert (await person.request(request))["status"] == "pending"


@pytest.mark.exhaustive
async def test_an_unanswered_decision_is_sent_again_as_the_same(api: Api) -> None:
    """With the connection lost, the screen says that the decision may have arrived; sent again it counts once."""
    request = await api.gated("pay 5")
    services = {"database": api.stack.database, "gateway": api.stack.services.gateway}
    settings = ApiSettings(sse_ping=timedelta(milliseconds=300))
    async with contextlib.AsyncExitStack() as server, contextlib.AsyncExitStack() as seat:
        url = await server.enter_async_context(serving(create_api_app(**services, settings=settings)))
        person = await seat.enter_async_context(person_at(api, size=(120, 30), url=url))
        await person.sees("1 waits")
        await person.opens()
        await person.press("r")
        await person.dialog_field(Input).fill("too much")
        await server.aclose()
        await person.press("enter")
        await person.sees("It may not have arrived. Send it again")
        await person.sees("No connection")
        assert await person.dialog_field(Input).text() == "too much"
        again = create_api_app(**services, settings=settings)
        await server.enter_async_context(serving(again, port=int(url.rpartition(":")[2])))
        await person.press("enter")
        await person.sees("rejected by ada")
        await seat.aclose()
    assert (await person.decided(request))["decision"]["message"] == "too much"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (503, "temporal_unavailable", "Not possible right now: away"),
        (409, "claimed", "has claimed it"),
        (409, "digest_differs", "Look at it again (F5)"),
        (409, "already_approved", "One more person must approve it"),
        (410, "request_expired", "it has expired"),
        (410, "request_superseded", "A newer message to the run took its place"),
        (403, "not_eligible", "You may not do this: away"),
        (401, "unauthenticated", "make a new token"),
        (429, "rate_limited", "send it again in 7 s"),
    ],
)
def test_each_refusal_has_words_that_say_what_to_do(status: int, code: str, words: str) -> None:
    """Every problem document that the API sends for a decision becomes words for the person at the keys, made harmless."""
    problem = {"detail": "away \u202e", "code": code, "status": status, "claimed_by": "eve\u202e"}
    response = httpx.Response(status, json=problem, headers={"Retry-After": "7"})
    try:
        check(response, "http://127.0.0.1")
    except Exception as error:  # noqa: BLE001 - whichever of our errors it is
        message = problem_words(error)
    assert words in message
    assert "\u202e" not in message
