"""What yes, no and no answer lead to: on the request page, in the terminal, in its UI and in the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling
from support.stores.changed_rows import log_requests_again

from turngate.approvals_api.pages.templating import sentence
from turngate.approvals_api.requests.consequences import consequences_of
from turngate.approvals_api.requests.views import request_detail
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.policy.terms import AskTerms
from turngate.frontends.tui.request_text import facts_text
from turngate.store.tables import requests
from turngate.wire.requests import RequestDetail

AT = "2026-11-23T09:30:00.000000+00:00"
PLAIN: dict[str, Any] = {"quorum": 1, "precondition": None, "parked_at": None, "expires_at": None}
WAITS = "The run waits in this step; its other calls continue."
REFUSED = f"{WAITS} At 2026-11-23 09:30 UTC the call is refused, and the agent reads that no one answered."
PARKED = f"{WAITS} At 2026-11-23 09:30 UTC it is parked: it waits on, without a deadline."
CASES = [
    ({}, "yes", "Runs the call exactly as shown."),
    ({"precondition": "1"}, "yes", "Runs the call exactly as shown. If what it depends on has changed, you are asked again."),
    ({"quorum": 3}, "yes", "Yours is one of 3 approvals; 2 more must follow before anything runs."),
    ({"quorum": 2, "approvals": 1}, "yes", "Yours is the last of 2 approvals. Runs the call exactly as shown."),
    ({"ask_terms": AskTerms(grace_seconds=90)}, "yes",
     "Runs the call exactly as shown. It starts 90 s later; until then you can take the approval back."),
    ({"agent": "external-shop"}, "yes", "Lets shop run the call exactly as shown."),
    ({"unseen_secrets": ["/password"]}, "yes", "Runs the call as shown, with one value that you don't see."),
    ({"kind": "question"}, "yes", "The agent gets your answer as the call's result. No tool runs."),
    ({"kind": "question"}, "undo", ""),
    ({"kind": "outcome"}, "no", "The agent reads that the call may or may not have taken effect."),
    ({}, "no", "The call doesn't run. The agent reads your reason, and that it must not repeat the call as it is."),
    ({}, "silence", f"It waits until someone answers. {WAITS}"),
    ({"expires_at": AT}, "silence", REFUSED),
    ({"expires_at": AT, "ask_terms": AskTerms(on_expiry="park")}, "silence", PARKED),
    ({"expires_at": AT, "parked_at": AT}, "silence", f"It waits until someone answers. {WAITS}"),
    ({}, "undo", "Turngate can't take it back, and never repeats it by itself."),
]  # fmt: skip


@pytest.fixture
async def detail(sqlite_template: Any, tmp_path: Path) -> RequestDetail:
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "leads") as served:
        async with served.database.write() as conn:
            await conn.execute(update(requests).where(requests.c.id == "rq_approval").values(**PLAIN, terms="{}"))
            await log_requests_again(conn)
        async with served.database.read() as conn:
            stored = await request_detail(conn, "rq_approval")
    manifest = stored.manifest.model_copy(update={"effect": "once", "kind": "local"})
    return stored.model_copy(update={"manifest": manifest, "agent": "agent", "approvals": 0, "ask_terms": AskTerms()})


async def test_each_answer_says_what_it_leads_to(detail: RequestDetail) -> None:
    """What runs, what the agent reads, what waits until when, and what can be taken back, as the request's own terms say."""
    for changes, name, words in CASES:
        leads_to = consequences_of(detail.model_copy(update=changes))
        assert getattr(leads_to, name) == words
    assert consequences_of(detail.model_copy(update={"status": "approved"})) is None


async def test_each_surface_says_it(sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next to the buttons, in the terminal and in its UI; an ended request says nothing of it."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "surfaces") as served:
        page, ended = await served.html(STATES["approval"]), await served.html(STATES["approved"])
        async with served.database.read() as conn:
            pending = await request_detail(conn, "rq_approval")
    assert pending.leads_to is not None
    out.cache_clear()
    show_request(pending)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    screen = " ".join(" ".join(each.text.plain.replace("↳", "") for each in facts_text(pending).lines).split())
    for words in pending.leads_to.model_dump().values():
        assert str(sentence(words)) in page
        assert words in output
        assert words in screen
    assert 'class="leads-to"' in page
    assert 'class="leads-to"' not in ended


def test_a_budget_that_is_extended_leads_to_other_things() -> None:
    """The engine's own call: a no ends the run, and no agent reads of it."""
    request = RequestDetail.model_construct(
        tool_name="extend_budget", agent="a", status="pending", kind="approval", expires_at=None, parked_at=None
    )
    leads_to = consequences_of(request)
    assert leads_to is not None
    assert leads_to.yes.startswith("The run may use that much more")
    assert leads_to.no.startswith("The run ends")
    assert "reads nothing" in leads_to.no
