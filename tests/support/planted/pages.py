"""Every state of every page, from planted rows, without an engine. A new page needs one row in :data:`STATES`."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
from support.api.playground import refund
from support.pages.html_forms import PostedPage
from support.planted.hostile_texts import MARK
from support.planted.rows import OPERATOR, plant
from support.planted.text import Filling
from support.stores.statement_cache import compiled_once
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.digest import framed_sha256
from turngate.domain.tools.tool import ToolManifest
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import sessions
from turngate.store.database import Database
from turngate.wire.playground import (
    PaceOrder,
    RunMessages,
    ScriptEntry,
    ScriptRequest,
    ScriptSteps,
    Trial,
    TrialOrder,
)

ADDRESS = "http://127.0.0.1"


@dataclass(frozen=True)
class PageState:
    """A page and how to request it.

    ``action``: submit the page's form with this action and ``changes`` (control → text), and use the response. ``to``: send
    ``changes`` to this address instead, with the page's form token. ``dev``: as `turngate dev` serves it.
    """

    path: str
    action: str | None = None
    to: str | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    logged_in: bool = True
    empty: bool = False
    dev: bool = False


IN_ADDRESS = f"{MARK}<b>\u202e\x1b[31m\r\n javascript:owned() \u0430"
IN_EACH_FIELD = "&".join(
    f"{name}={quote(IN_ADDRESS)}" for name in ("search", "tool", "agent", "rule", "claimed", "run_id")
)
IN_AUDIT = "&".join(f"{name}={quote(IN_ADDRESS)}" for name in ("tool", "actor", "run_id"))

RULE = {
    "rule-name": "seen often",
    "rule-verdict": "allow",
    "rule-tools": "refund",
}

TRIED = {"agent": "support", "tool": "refund", "action": "json", "json": MARK, "task": MARK}

STATES: dict[str, PageState] = {
    "inbox": PageState("/"),
    "inbox decided": PageState("/?status=all"),
    "inbox empty": PageState("/", empty=True),
    "inbox without hits": PageState("/?search=no-such-words", empty=True),
    "inbox with a filter": PageState("/?risk=high&status=rejected", empty=True),
    "inbox of no such names": PageState(f"/?{IN_EACH_FIELD}", empty=True),
    "inbox of no status": PageState("/?status=expired", empty=True),
    "health": PageState("/health"),
    "runs": PageState("/runs"),
    "runs empty": PageState("/runs", empty=True),
    "runs of no status": PageState("/runs?status=failed", empty=True),
    "runs filtered": PageState(f"/runs?search={MARK}"),
    "runs of no agent": PageState(f"/runs?search={quote(IN_ADDRESS)}&agent={quote(IN_ADDRESS)}&cause=bug", empty=True),
    "runs stalled": PageState("/runs?status=stalled"),
    "runs stalled empty": PageState("/runs?status=stalled", empty=True),
    "approval": PageState("/requests/rq_approval?conversation=all&whole=1"),
    "approval in part": PageState("/requests/rq_approval"),
    "approval with a diff": PageState("/requests/rq_diff"),
    "approval of a command": PageState("/requests/rq_command"),
    "approval of what is no object": PageState("/requests/rq_raw"),
    "approval barred": PageState("/requests/rq_barred"),
    "approval parked and claimed": PageState("/requests/rq_claimed"),
    "approval with an invalid edit": PageState(
        "/requests/rq_approval?whole=1", "edit", changes={"edit-1": "many", "edit-0": ""}
    ),
    "approval with a row more": PageState("/requests/rq_approval?whole=1", "edit", changes={"row": "add edit-3"}),
    "approval with a grant to review": PageState(
        "/requests/rq_again",
        to="/requests/rq_again/grant",
        changes={"grant-how-0": "open", "grant-uses": "9", "grant-lasts": "3600", "grant-scope": "run"},
    ),
    "approval with limits of a grant": PageState(
        "/requests/rq_again",
        to="/requests/rq_again/grant",
        changes={"grant-uses": "no", **{f"grant-how-{at}": ("one_of", "range", "prefix")[at % 3] for at in range(6)}},
    ),
    "approval unconfirmed": PageState("/requests/rq_command?whole=1", "approve", changes={"approve-confirm": "no"}),
    "approval replaced": PageState("/requests/rq_again"),
    "question": PageState("/requests/rq_question"),
    "outcome": PageState("/requests/rq_outcome"),
    "approved": PageState("/requests/rq_approved"),
    "approved as edited": PageState("/requests/rq_edited?whole=1"),
    "rejected": PageState("/requests/rq_rejected"),
    "answered": PageState("/requests/rq_responded"),
    "outcome resolved": PageState("/requests/rq_resolved"),
    "expired": PageState("/requests/rq_expired"),
    "cancelled": PageState("/requests/rq_cancelled"),
    "superseded": PageState("/requests/rq_superseded"),
    "run running": PageState("/runs/run_running"),
    "run completed": PageState("/runs/run_completed"),
    "run failed": PageState("/runs/run_failed"),
    "run interrupted": PageState("/runs/run_interrupted"),
    "timeline": PageState("/runs/run_completed/timeline"),
    "timeline of a part": PageState("/runs/run_failed/timeline?from=0&to=5"),
    "runs compared": PageState("/runs/run_running/compare/run_completed"),
    "fork compared": PageState("/runs/run_completed/compare/run_failed"),
    "fork": PageState(
        "/runs/run_completed/fork?step=1", "fork", changes={"look": "yes", "agent": "second", "plain": "yes"}
    ),
    "fork summarised": PageState(
        "/runs/run_completed/fork?step=1", "fork", changes={"look": "yes", "summarise": "yes"}
    ),
    "conversation": PageState("/runs/run_completed/conversation?cut=1"),
    "conversation without a response": PageState("/runs/run_retrying/conversation"),
    "run retrying": PageState("/runs/run_retrying"),
    "run of an external call": PageState("/runs/run_outside"),
    "external call": PageState("/requests/rq_outside"),
    "fork with invalid input": PageState(
        "/runs/run_completed/fork", "fork", changes={"step": "1", "policy": "no toml", "instructions": " "}
    ),
    "dry run plan": PageState("/runs/run_completed/replay", "replay", changes={"look": "yes", "agent": "second"}),
    "dry run": PageState("/runs/run_replay"),
    "dry run compared": PageState("/runs/run_completed/compare/run_replay"),
    "run with an unknown model": PageState("/runs/run_running", "model", changes={"model": "no such"}),
    "run with an empty message": PageState("/runs/run_failed", "message", changes={"input": ""}),
    "result": PageState("/runs/run_completed/result?call=call_ok"),
    "result of a failure": PageState("/runs/run_completed/result?call=call_failed"),
    "new run": PageState("/runs/new"),
    "new run without agents": PageState("/runs/new", empty=True),
    "schedules": PageState("/schedules"),
    "schedules empty": PageState("/schedules", empty=True),
    "schedule": PageState("/schedules/sched_1"),
    "timetable": PageState(
        "/schedules/new", "schedule", changes={"name": "a", "input": IN_ADDRESS, "timetable/cron": "0 8 * * *"}
    ),
    "timetable invalid": PageState(
        "/schedules/new", "schedule", changes={"name": IN_ADDRESS, "timetable/cron": IN_ADDRESS, "agent": IN_ADDRESS}
    ),
    "timetable changed": PageState("/schedules/sched_1/edit"),
    "timetable without agents": PageState("/schedules/new", empty=True),
    "schedule held": PageState("/schedules/sched_2"),
    "schedule deleted": PageState("/schedules/sched_3"),
    "grants": PageState("/grants?status=all"),
    "grant": PageState("/grants/gr_1"),
    "grant revoked": PageState("/grants/gr_2"),
    "grants empty": PageState("/grants", empty=True),
    "policy": PageState("/policy"),
    "decisions": PageState("/decisions"),
    "decisions empty": PageState("/decisions", empty=True),
    "policy explained": PageState("/policy?tool=pay&args=%7B%22a%22%3A1%7D"),
    "policy without rules": PageState("/policy", empty=True),
    "rule": PageState("/policy/rule?name=watched"),
    "rule new": PageState("/policy/rule", empty=True),
    "rule previewed": PageState(
        "/policy/rule",
        to="/policy/rule",
        changes={**RULE, "rule-reason": MARK, "rule-tools": "*", "action": "preview"},
    ),
    "rule with errors": PageState(
        "/policy/rule", to="/policy/rule", changes={**RULE, "rule-name": "", "rule-at-0": "x"}, empty=True
    ),
    "audit": PageState("/audit"),
    "audit of no such names": PageState(f"/audit?{IN_AUDIT}", empty=True),
    "audit verified": PageState("/audit?verify=run_completed"),
    "retention": PageState("/retention", empty=True),
    "retention erase": PageState("/retention/erase", empty=True),
    "notifications": PageState("/notifications"),
    "account": PageState("/account"),
    "bulk": PageState(
        "/", to="/requests/bulk", changes={f"pick-rq_{each}": "d1" for each in ("diff", "command", "raw")}
    ),
    "playground": PageState("/playground?agent=support&tool=refund", dev=True),
    "playground with a call": PageState("/playground", to="/playground", changes=TRIED, dev=True),
    "script": PageState("/playground/script?agent=support", dev=True),
    "script of a run": PageState("/playground/script?run=run_asking", dev=True),
    "script with an unknown action": PageState(
        "/playground/script?run=run_asking",
        to="/playground/script",
        changes={"run": "run_asking", "action": IN_ADDRESS},
        dev=True,
    ),
    "login": PageState("/login", logged_in=False),
    "login done": PageState("/login/done", logged_in=False),
    "login by link": PageState("/login?link=secret", logged_in=False),
    "not found": PageState(f"/requests/{quote(IN_ADDRESS)}"),
    "invalid": PageState(f"/?status={quote(IN_ADDRESS)}"),
}


class PlantedPlayground:
    """An app in which every text is the same: its error, its tools, and what it says of a call."""

    def __init__(self, database: Database, text: str) -> None:
        self._database, self._text = database, text
        manifest = refund.manifest.model_copy(update={"description": text})
        self.error = text
        self.tools: Mapping[str, Sequence[ToolManifest]] = {
            name: [manifest]
            for name in ("support", text, text[:64])  # the last: of the runs
        }
        self.one_step_at_a_time = True

    def script_steps(self, agent: str, script: str = "", run: RunMessages | None = None) -> ScriptSteps:
        """Return a script of which the run took the first entry; the agent of the run has it."""
        text = self._text
        entry = ScriptEntry(place=text, when=text, text=text, calls=((text, text),), notes=(text,), steps=(1,))
        requests = [
            ScriptRequest(step=1, place=text, differs=True),
            ScriptRequest(step=None, why_not=text),
        ]
        return ScriptSteps(
            model=f"scripted:{text}",
            of_agent=(f"scripted:{text}", f"scripted:other {text}"),
            problem=text,
            entries=(entry, entry.model_copy(update={"steps": (), "is_next": True})),
            requests=() if run is None else tuple(requests),
            left_out=3,
        )

    async def set_pace(self, order: PaceOrder) -> None:
        """Note the pace."""
        self.one_step_at_a_time = order.one_step_at_a_time

    async def try_call(self, _order: TrialOrder) -> Trial:
        async with self._database.read() as conn:
            request = await request_detail(conn, "rq_approval")
        text, failure = self._text, json.dumps({"kind": "denied", "reason": self._text})
        return Trial(answer="ask", rule=text, reason=text, risk="high", failure=failure, judged=True, request=request)


@dataclass
class Pages:
    """The pages over two stores, requested without a network."""

    database: Database
    client: httpx.AsyncClient
    empty: httpx.AsyncClient
    dev: httpx.AsyncClient

    async def html(self, state: PageState) -> str:
        """Return the page of a state, after submitting its form if it has one."""
        client = self.empty if state.empty else self.client
        client = self.dev if state.dev else client
        headers = {} if state.logged_in else {"Cookie": ""}
        answer = await client.get(state.path, headers=headers)
        if state.action is not None:
            sent = {**PostedPage(answer.text).form(state.action).sent, **state.changes}
            answer = await client.post(state.path, data=sent)
        elif state.to is not None:
            token = next(each.sent["csrf_token"] for each in PostedPage(answer.text).forms if "csrf_token" in each.sent)
            answer = await client.post(state.to, data={"csrf_token": token, **state.changes})
        assert answer.headers["content-type"] == "text/html; charset=utf-8", answer.text[:1_000]
        assert answer.status_code in {200, 404, 422}, answer.text[:1_000]
        return answer.text


@asynccontextmanager
async def pages_of(filling: Filling, template: Path, folder: Path) -> AsyncIterator[Pages]:
    """Serve the pages of two stores, one filled and one empty, to a logged-in operator. No Temporal server is running.

    ``template``: a migrated SQLite file to copy. ``folder``: created for the copies.
    """
    filled, empty = _copies([await _planted(filling, template), template], folder)
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    playground = PlantedPlayground(filled, filling.text)
    async with (
        _client(filled, nowhere) as client,
        _client(empty, nowhere) as without,
        _client(filled, nowhere, playground) as dev,
    ):
        yield Pages(filled, client, without, dev)
    await filled.close()
    await empty.close()


_PLANTED: set[Path] = set()


def _copies(files: Sequence[Path], folder: Path) -> list[Database]:
    folder.mkdir()
    copies = [shutil.copy(file, folder / f"{n}.db") for n, file in enumerate(files)]
    return [compiled_once(Database(f"sqlite:///{copy}")) for copy in copies]


async def _planted(filling: Filling, template: Path) -> Path:
    """Return a copy of the template, next to it, with the rows in it. The next test with this filling gets the same file."""
    file = template.with_name(f"{framed_sha256(filling.text, filling.in_json, filling.in_raw)}.db")
    if file not in _PLANTED:
        database = Database(f"sqlite:///{shutil.copy(template, file)}")
        async with database.write() as conn:
            await plant(conn, filling)
        await database.close()
        _PLANTED.add(file)
    return file


@asynccontextmanager
async def _client(
    database: Database, nowhere: Client, playground: PlantedPlayground | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    async with database.write() as conn:
        secret = await sessions.begin(conn, OPERATOR, role="admin")
    app = create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(), playground=playground)
    headers = {
        "Accept": "text/html",
        "Origin": ADDRESS,
        "Sec-Fetch-Site": "same-origin",
        "Cookie": f"{SESSION_COOKIE}={secret}",
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, headers=headers) as client:
        yield client
