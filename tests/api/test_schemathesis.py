"""The running API against its own document: schemathesis makes two thousand requests and reports no failure.

``make test`` makes a few random requests for each endpoint of requests. ``make test-all`` makes those that the document itself
leads to (each bound, each left-out member, each wrong type) and follows links;
``SCHEMATHESIS_EXAMPLES=50 pytest tests/api/test_schemathesis.py`` also makes that many at random for each endpoint, and tries
every method that a path does not have. It takes minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api.api_server import POLICY, TOOLS, Api, TextScript, api_on, token_for
from support.engine.stack import stack
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.store.database import Database

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "openapi.json"
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "0"))
ALL_PHASES = "examples,coverage,fuzzing,stateful" if EXAMPLES else "examples,coverage,stateful"
METHODS = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"] if EXAMPLES else ["PATCH"]

CONFIG = """
base-url = "{url}"
hooks = "{hooks}"
max-stream-events = 1
request-timeout = 10
continue-on-failure = true
suppress-health-check = ["too_slow"]
color = false

[headers]
Authorization = "{authorization}"

[cache]
enabled = false

[generation]
max-examples = {examples}
deterministic = true
database = "none"
allow-x00 = false

# A request may have ended, or its run: 410 says so of data that were good a moment ago, as 409 does.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "410"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "409", "413", "422", "429"]

# What no schema says: an edit fits the tool's schema; which steps of a run are closed is its state; a scope goes with a run
# or an agent; no request is twice among many; an erasure is confirmed by its target; TOML, filters, names, timetables and
# tools' schemas have rules of their own.
[[operations]]
include-operation-id = [
    "decide_request", "decide_requests", "fork_run", "create_grant", "put_policy", "explain_policy", "save_view",
    "issue_token", "create_schedule", "change_schedule", "preview_fork", "send_external_call", "preview_policy_rule",
    "store_policy_rule", "preview_grant", "erase_content"
]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "410", "422"]

[phases.coverage]
unexpected-methods = {methods}

# A stream from now on, when nothing happens: it is left after this many seconds.
[[operations]]
include-operation-id = "follow_all_events"
request-timeout = 1

[dictionaries]
runs = {{ values = {runs} }}
requests = {{ values = {requests} }}
conversations = {{ values = {conversations} }}
calls = {{ values = {calls} }}

[parameters]
"body.conversation_id" = {{ dictionary = "conversations" }}
"path.run_id" = {{ dictionary = "runs" }}
"path.request_id" = {{ dictionary = "requests" }}
"path.conversation_id" = {{ dictionary = "conversations" }}
"path.tool_call_id" = {{ dictionary = "calls" }}
"""


@pytest.fixture
async def own_api(client: Client, sqlite: Database) -> AsyncIterator[Api]:
    """An engine and an API for this test alone, because an admin's requests change its policy too."""
    async with (
        stack(client, sqlite, *TOOLS, model=TextScript(), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api


@pytest.mark.parametrize(("phases", "paths"), [("fuzzing", "/api/v1/requests"), ("fuzzing", "/"), (ALL_PHASES, "/")])
async def test_schemathesis_reports_no_failure(phases: str, paths: str, own_api: Api, tmp_path: Path) -> None:
    """All its checks, on requests that fit the document and on requests that do not; every endpoint is tried."""
    api = own_api
    decided = await api.gated("pay 6")
    assert (await api.decide(decided)).status_code == 200
    known = (decided, await api.gated(), await api.gated("ask_person Well?"))
    file = tmp_path / "schemathesis.toml"
    file.write_text(
        CONFIG.format(
            url=api.url,
            hooks=HERE / "schemathesis_hooks.py",
            authorization=(await token_for(api.stack.database, "fuzzer", "admin"))["Authorization"],
            examples=EXAMPLES or 1,
            methods=METHODS,
            runs=[each["run_id"] for each in known],
            requests=[each["id"] for each in known],
            conversations=[each["run"]["conversation_id"] for each in known],
            calls=[each["tool_call_id"] for each in known],
        )
    )
    page = (await api.operator.get("/api/v1/runs?limit=1")).json()
    meaningful = {
        "agent": "agent",
        "model": "scripted:test",
        "workspace": str(tmp_path),
        "cursor": page["next_cursor"],
        "digests": {each["id"]: each["digest"] for each in known},
    }
    output, code = await ran_schemathesis(file, phases, paths, meaningful)
    await no_more_fires(api)
    assert code == 0, output
    documented = json.loads(DOCUMENT.read_text())["paths"]
    operations = sum(len(methods) for path, methods in documented.items() if path.startswith(paths))
    assert f"Tested: {operations}" in output, output


async def no_more_fires(api: Api) -> None:
    """Delete the schedules that it created: other tests use the same Temporal."""
    while schedules := (await api.agent.get("/api/v1/schedules?limit=200")).json()["items"]:
        for each in schedules:
            await api.agent.delete(f"/api/v1/schedules/{each['id']}")


async def ran_schemathesis(config: Path, phases: str, paths: str, known: dict[str, Any]) -> tuple[str, int | None]:
    """Run its command in a process of its own, on the paths that begin like this; return its output and exit code."""
    command = "from schemathesis.cli import schemathesis; schemathesis()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", command, "--config-file", str(config)),
        *(
            "run",
            str(DOCUMENT),
            "--checks",
            "all",
            "--phases",
            phases,
            "--warnings",
            "off",
            "--include-path-regex",
            f"^{paths}",
        ),
        cwd=config.parent,
        env={**os.environ, "SCHEMATHESIS_KNOWN": json.dumps(known)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _nothing = await process.communicate()
    return output.decode(errors="replace"), process.returncode
