"""Figure 5: a page of 50 among 10,000 pending requests, through the whole app on a loopback socket."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

import httpx
from api_server import serving, token_for
from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale
from sqlalchemy import text
from temporalio.client import Client

from approvals_api.app import ApiSettings, create_app
from approvals_api.gateway import Gateway
from turngate.domain.messages import user_message
from turngate.store import messages, requests, runs
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.toolkits.files import edit_file

GOAL_SECONDS = 0.01
PAGE = 50
PER_RUN = 50
WARM_UP = 10
PREVIEW = "".join(f"-    old line {number}\n+    new line {number}\n" for number in range(25))


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """One line per database."""
    return [await _figure(name, client, database, scale) for name, database in databases.items()]


async def _figure(name: str, client: Client, database: Database, scale: Scale) -> Figure:
    async with database.write() as conn:
        await _seed(conn, scale.pending)
        await conn.execute(text("ANALYZE"))  # which PostgreSQL does by itself a minute after such an import
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    headers = await token_for(database, "bench", "requests:read")
    samples: list[float] = []
    async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        for _ in range(WARM_UP + scale.pages):
            began = time.perf_counter()
            answer = await http.get("/api/v1/requests", params={"limit": PAGE})
            samples.append(time.perf_counter() - began)
            if answer.status_code != 200 or len(answer.json()["items"]) != PAGE:
                raise MeasurementError(f"the inbox answered {answer.status_code}: {answer.text[:200]}")
    del samples[:WARM_UP]
    return Figure(
        name=f"page of {PAGE} among {scale.pending} pending, {name}",
        ours=milliseconds(samples),
        goal=f"p50 <= {GOAL_SECONDS * 1000:.0f} ms",
        reached=percentile(samples, 0.5) <= GOAL_SECONDS,
        samples={"ours_seconds": samples},
    )


async def _seed(conn: Connection, pending: int) -> None:
    """Store pending requests as large as real ones: a tool's whole manifest, a diff of some 1 KiB, the agent's words."""
    manifest = edit_file.manifest.model_dump_json()
    for first in range(0, pending, PER_RUN):
        run_id = await _run(conn)
        await requests.insert_all(
            conn, [_request(run_id, number, manifest) for number in range(first, min(first + PER_RUN, pending))]
        )


async def _run(conn: Connection) -> str:
    run_id, conversation_id, message_id = (f"{kind}_{secrets.token_hex(12)}" for kind in ("run", "conv", "msg"))
    await messages.create_conversation(conn, conversation_id)
    await messages.append(
        conn,
        message_id=message_id,
        parent_id=None,
        conversation_id=conversation_id,
        run_id=run_id,
        step=None,
        message=user_message("Tidy the invoices."),
    )
    await runs.create(
        conn,
        run_id=run_id,
        conversation_id=conversation_id,
        agent="agent",
        agent_version="1",
        model="scripted:bench",
        workspace=None,
        task="Tidy the invoices.",
        input_message_id=message_id,
        started_by="starter",
        idempotency_key=None,
        request_fingerprint="",
    )
    await runs.advance(conn, run_id, step=1)
    return run_id


def _request(run_id: str, number: int, manifest: str) -> requests.Request:
    return requests.Request(
        id=f"rq_{secrets.token_hex(12)}",
        run_id=run_id,
        tool_call_id=f"call_{number}",
        kind="approval",
        status="pending",
        agent="agent",
        tool_name="edit_file",
        manifest=manifest,
        input='{"path": "invoices/2024.csv", "old": "total", "new": "sum"}',
        digest=secrets.token_hex(32),
        rule="tool",
        reason="The tool asks.",
        risk="medium",
        agent_words="The column is named differently in the ledger, so I will rename it here. " * 2,
        preview_kind="diff",
        preview=PREVIEW,
        not_by=None,
        expires_at=None,
        created_at=as_text(now() - timedelta(seconds=20_000 - number)),
    )
