"""Retention: what is older than its rule keeps goes, a hold keeps it, and the log says by which rule it went."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from support.engine.stack import OPERATOR, Script, call, require_no_difference, says, stack
from temporalio.client import Client

from turngate import tool
from turngate.approvals_api.retention import apply, holds
from turngate.approvals_api.runs.fork import fork
from turngate.domain.retention import RetentionRule
from turngate.domain.tools.preview import Preview
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, runs
from turngate.wire.orders import ForkOrder

DAY = timedelta(days=1)
RESULTS = RetentionRule(name="lookups", kind="results", keep=DAY, tools=("look",))
PREVIEWS = RetentionRule(name="previews", kind="previews", keep=DAY)
ALL = RetentionRule(name="month", kind="conversations", keep=30 * DAY)
ERRORS = RetentionRule(name="errors", kind="errors", keep=DAY)
SENT = RetentionRule(name="sent", kind="notifications", keep=DAY)


class Query(BaseModel):
    text: str


@tool(effect="read", ask=False)
async def look(params: Query) -> dict[str, str]:
    """Look something up."""
    return {"found": f"secret of {params.text}"}


async def test_i15_old_results_and_then_all_content_go_unless_held(client: Client, database: Database) -> None:
    """I15: results go after a day and the rest after a month; a hold keeps all; the log agrees after each."""
    script = Script(says("I look.", call("look", '{"text": "them"}', "c1")), says("Done."))
    async with stack(client, database, look, model=script) as engine:
        run = await engine.ended(await engine.start("who?"))
        rules = (RESULTS, ALL, ERRORS, SENT)
        assert await apply.preview(database, rules, now()) == {"lookups": 0, "month": 0, "errors": 0, "sent": 0}
        assert (await apply.preview(database, rules, now() + 2 * DAY))["lookups"] == 1
        hold = await holds.add(database, run.conversation_id, reason="a lawsuit", by="lea")
        assert not any((await apply.run(database, rules, now() + 60 * DAY, by="clock")).values())
        await holds.remove(database, hold.id, reason="settled", by="lea")
        assert (await apply.run(database, rules, now() + 2 * DAY, by="clock"))["lookups"] == 1
        assert "secret of them" not in str(await engine.history(run))
        assert "who?" in str(await engine.history(run))
        await require_no_difference(database)
        assert (await apply.run(database, rules, now() + 2 * DAY, by="clock"))["lookups"] == 0
        assert (await apply.run(database, rules, now() + 60 * DAY, by="clock"))["month"] == 1
        assert "who?" not in str(await engine.history(run))
        async with database.read() as conn:
            erased = await events.newest(conn, run.id, "conversation.erased", limit=5)
            stored = await runs.get(conn, run.id)
            (looked,) = await calls.of_run(conn, run.id)
        assert [each.payload["rule"] for each in erased] == ["month", "lookups"]
        assert stored is not None
        assert (looked.tool_name, looked.result_kind) == ("look", "ok")


async def test_i15_old_previews_go_and_the_log_agrees(client: Client, sqlite: Database) -> None:
    """I15: what people saw of a call besides its arguments goes; arguments, results and decisions stay; forks are possible."""

    def before(params: Query, _workspace: object) -> Preview:
        return Preview(kind="text", text=f"preview of {params.text}")

    @tool(effect="once", ask=True, preview=before)
    async def pay(params: Query) -> dict[str, str]:
        """Pay."""
        return {"paid": params.text}

    script = Script(says("I pay.", call("pay", '{"text": "them"}', "c1")), says("Done."), says("Done."))
    async with stack(client, sqlite, pay, model=script) as engine:
        run = await engine.start("pay")
        request = await engine.request(run, tool="pay")
        assert request.preview == "preview of them"
        await engine.decide(request, "approve")
        run = await engine.ended(run)
        assert await apply.run(sqlite, [PREVIEWS], now() + 2 * DAY, by="clock") == {"previews": 1}
        assert await apply.run(sqlite, [PREVIEWS], now() + 2 * DAY, by="clock") == {"previews": 0}
        await require_no_difference(sqlite)
        async with sqlite.read() as conn:
            emptied = await requests.get(conn, request.id)
            (paid,) = await calls.of_run(conn, run.id)
        assert emptied is not None
        assert (emptied.preview, emptied.preview_kind, emptied.input) == (None, None, '{"text": "them"}')
        assert paid.result_kind == "ok"
        assert (await fork(engine.services, OPERATOR, run.id, ForkOrder(text="again", step=1))).status == "running"
