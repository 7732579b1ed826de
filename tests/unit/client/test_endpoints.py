"""The client's calls against the API's document, and its two forms against each other."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from turngate.client import (
    SyncTurngateClient,
    TurngateClient,
    access,
    events,
    external_calls,
    health,
    policy,
    requests,
    retention,
    runs,
    schedules,
)
from turngate.client.calls import Call, with_member
from turngate.domain.agents.schedules import Timetable
from turngate.domain.errors import InvalidInputError
from turngate.domain.identity import TokenBounds
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.tools.external import ExternalTool
from turngate.wire.events import AuditFilter
from turngate.wire.orders import (
    DecisionOrder,
    DryRunOrder,
    ExternalCallOrder,
    ForkOrder,
    PolicyQuestion,
    RuleOrder,
    ScheduleChange,
    ScheduleOrder,
)

PATHS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())[
    "paths"
]
GRANT = WantedGrant(pattern=GrantPattern(tool="pay", fixed={"cents": 5}, open=["note"]))
FORK = ForkOrder(
    text="t",
    step=1,
    agent="a",
    model="m:n",
    workspace="/w",
    instructions="i",
    tools=["t"],
    policy="",
    plain=True,
    summarise=True,
)
DRY_RUN = DryRunOrder(step=1, agent="a", model="m:n", instructions="i", tools=["t"], policy="", plain=True)
THEN = datetime(2026, 4, 1, tzinfo=UTC)
STREAMS = {"follow_all_events", "follow_run_events"}
CALLS: dict[str, Call[Any]] = {
    "start_run": runs.start_run(agent="a", text="t", workspace="/w", model="m:n", conversation_id="c"),
    "list_runs": runs.list_runs(status="failed", cursor="c"),
    "get_run": runs.get_run("r"),
    "explain_run": runs.explain_run("r"),
    "list_errors": runs.list_errors(run_id="r"),
    "get_error": runs.get_error("e"),
    "compare_runs": runs.compare_runs("r", "o"),
    "list_stuck_runs": runs.list_stuck_runs(still_for_seconds=5, cursor="c"),
    "send_message": runs.send_message("r", "t", while_running="inject"),
    "pause_run": runs.pause("r", reason="x"),
    "switch_model_of_run": runs.switch_model("r", "m:n"),
    "resume_run": runs.resume("r"),
    "fork_run": runs.fork_run("r", FORK),
    "preview_replay": runs.preview_replay("r", DRY_RUN),
    "replay_run": runs.replay_run("r", DRY_RUN),
    "preview_fork": runs.preview_fork("r", FORK),
    "retry_run": runs.retry_run("r", model="m:n"),
    "interrupt_run": runs.interrupt("r", reason="x"),
    "get_result": runs.get_result("r", "c/d"),
    "send_external_call": external_calls.send_external_call(
        ExternalCallOrder(source="s", tool_call_id="c", tool=ExternalTool(name="t"), input="{}", context="x"), wait=5
    ),
    "list_external_calls": external_calls.list_external_calls(source="s", cursor="c"),
    "get_external_call": external_calls.get_external_call("r", wait=5),
    "start_external_call": external_calls.start_external_call("r", attempt="attempt-1"),
    "report_external_call": external_calls.report_external_call("r", attempt="attempt-1", result=None),
    "list_requests": requests.list_requests(
        cursor="c", status="all", kind="approval", agent="a", tool="t", risk="low", rule="r", claimed="me", parked=True
    ),
    "count_requests": requests.count_requests(run_id="r"),
    "get_request": requests.get_request("q"),
    "decide_request": requests.decide(
        "q",
        DecisionOrder(
            verb="edit",
            digest="d",
            args="{}",
            message="m",
            outcome="happened",
            grant=GRANT,
            answer_waiting=True,
            looked_ms=4_000,
            seen_percent=100,
        ),
    ),
    "decide_requests": requests.decide_requests({"q": "d"}, verb="approve", message="m", grant_id="g"),
    "claim_request": requests.claim_request("q", seconds=60, take_over=True),
    "withdraw_approval": requests.withdraw_approval("q"),
    "reveal_secrets": requests.reveal_secrets("q"),
    "release_request": requests.release_request("q"),
    "list_comments": requests.list_comments("q", cursor="c"),
    "add_comment": requests.add_comment("q", "t"),
    "get_presence": requests.get_presence("q"),
    "keep_presence": requests.keep_presence("q"),
    "create_schedule": schedules.create_schedule(
        ScheduleOrder(
            name="n",
            agent="a",
            input="t",
            timetable=Timetable(every_seconds=5),
            conversation="continue",
            conversation_id="c",
            workspace="/w",
            model="m:n",
            notes="n",
        )
    ),
    "list_schedules": schedules.list_schedules(cursor="c"),
    "get_schedule": schedules.get_schedule("s"),
    "change_schedule": schedules.change_schedule(
        "s",
        ScheduleChange(
            name="n",
            agent="a",
            input="t",
            timetable=Timetable(every_seconds=5),
            workspace="/w",
            model="m:n",
            unattended="deny",
            overlap="allow",
            catch_up_seconds=60,
            notes="n",
        ),
        revision=1,
    ),
    "pause_schedule": schedules.pause_schedule("s", reason="x"),
    "resume_schedule": schedules.resume_schedule("s"),
    "run_schedule": schedules.run_schedule("s"),
    "delete_schedule": schedules.delete_schedule("s"),
    "list_grants": policy.list_grants(status="all", cursor="c"),
    "get_grant": policy.get_grant("g"),
    "list_waiting_for_grant": policy.list_waiting_for_grant("g"),
    "preview_grant": policy.preview_grant("q", open_arguments=["note"]),
    "create_grant": policy.create_grant(GRANT, run_id="r", agent="a"),
    "revoke_grant": policy.revoke_grant("g"),
    "get_policy": policy.get_policy(),
    "put_policy": policy.put_policy("", if_version=0, comment="c"),
    "list_policy_versions": policy.list_policy_versions(cursor="c"),
    "get_policy_version": policy.get_policy_version(1),
    "revert_policy": policy.revert_policy(1, if_version=2, comment="c"),
    "confirm_policy": policy.confirm_policy(1),
    "refuse_policy": policy.refuse_policy(1),
    "list_waiting_for_rule": policy.list_waiting_for_rule("r"),
    "get_policy_offer": policy.get_policy_offer("q"),
    "preview_policy_rule": policy.preview_policy_rule("", replacing="r"),
    "store_policy_rule": policy.store_policy_rule(
        RuleOrder(rule="", mode="shadow", replacing="r", if_version=1, comment="c")
    ),
    "enforce_policy_rule": policy.enforce_policy_rule("r", if_version=1, comment="c"),
    "explain_policy": policy.explain_policy(
        PolicyQuestion(tool="t", agent="a", workspace="/w", unattended="deny", policy="")
    ),
    "get_shadow_report": policy.get_shadow_report(rule="r", since=THEN),
    "list_audit": events.list_audit(
        AuditFilter(run_id="r", type="run.*", actor="a", tool="t", since=THEN, until=THEN), cursor="1"
    ),
    "get_chain": events.get_chain("r"),
    "get_me": access.get_me(),
    "get_retention": retention.get_retention(),
    "add_hold": retention.add_hold("conv_1", reason="r"),
    "release_hold": retention.release_hold("h", reason="r"),
    "preview_erasure": retention.preview_erasure("conv_1", with_forks=True),
    "erase_content": retention.erase_content("conv_1", reason="r", confirm="conv_1", with_forks=True, interrupt=True),
    "get_health": health.get_health(),
    "list_sessions": access.list_sessions(cursor="c"),
    "end_session": access.end_session("s"),
    "list_tokens": access.list_tokens(cursor="c"),
    "issue_token": access.issue_token(
        "t", ["requests:read"], user="u", expires_in_seconds=60, bounds=TokenBounds(agents=["a"], trust_ask=True)
    ),
    "revoke_token": access.revoke_token("t"),
    "list_deliveries": events.list_deliveries(channel="c", status="failed", cursor="c"),
    "retry_delivery": events.retry_delivery("d"),
    "list_messages": runs.list_messages("c"),
    "list_agents": runs.list_agents(),
    "list_models": runs.list_models(),
}
OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in PATHS.items()
    if path.startswith("/api/v1/")
    for method, operation in methods.items()
}


def test_every_endpoint_has_a_call() -> None:
    """Python can call everything in the document."""
    missing = sorted(OPERATIONS.keys() - CALLS.keys() - STREAMS)
    assert not missing, f"describe these calls in turngate/client and name them here: {', '.join(missing)}"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_agrees_with_the_document(name: str) -> None:
    """Method, path, parameters, members of the body, and a key where the endpoint accepts one."""
    schemas = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())["components"]["schemas"]
    call = CALLS[name]
    method, path, operation = OPERATIONS[name]
    assert call.method == method
    assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), f"/api/v1{call.path}")
    taken = {(each["in"], each["name"]) for each in operation.get("parameters", ())}
    assert call.params.keys() <= {each for place, each in taken if place == "query"}
    assert (call.key is not None) == (("header", "Idempotency-Key") in taken)
    assert (call.content is not None) == ("requestBody" in operation)
    if call.content is not None:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        named = schema if "$ref" in schema else schema["anyOf"][0]
        body = schemas[named["$ref"].rpartition("/")[2]]
        sent = json.loads(call.content)
        assert sent.keys() <= body["properties"].keys()
        assert set(body.get("required", ())) <= sent.keys()


def test_json_text_is_sent_as_it_is() -> None:
    """Byte for byte, even as the only member; text that is not JSON is refused before it is sent."""
    assert with_member("{}", "args", '{"a":  1.10}') == '{"args": {"a":  1.10}}'
    assert with_member('{"x": 1}', "args", "2e0") == '{"x": 1, "args": 2e0}'
    for wrong in ("{", '1}, "digest": "x"', "[" * 100_000):
        with pytest.raises(InvalidInputError):
            with_member("{}", "args", wrong)


def test_both_clients_have_the_same_documented_methods() -> None:
    """``help()`` shows each method's own parameters and docstring, for the first one too."""

    def methods(kind: type) -> dict[str, Callable[..., object]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: method for name, method in members if not name.startswith("_") and name not in {"close", "aclose"}
        }

    both = methods(TurngateClient), methods(SyncTurngateClient)
    assert set(both[0]) == set(both[1])
    for name, method in both[0].items():
        assert inspect.signature(method).parameters.keys() == inspect.signature(both[1][name]).parameters.keys()
        assert method.__doc__
    bound = SyncTurngateClient("http://turngate.test").get_run
    assert list(inspect.signature(bound).parameters) == ["run_id"]
