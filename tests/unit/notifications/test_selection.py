"""Which events a channel gets."""

from __future__ import annotations

import pytest

from turngate.notifications.selection import DEFAULT_EVENTS, NOTIFIABLE, Selection, name_of

REQUEST = {"agent": "writer/reader", "tool": "pay_refund", "risk": "medium"}
RUN = {"agent": "support", "tool": None, "risk": None}


@pytest.mark.parametrize(
    ("event_type", "payload", "name"),
    [
        ("request.opened", {}, "request.opened"),
        ("run.ended", {"status": "failed"}, "run.failed"),
        ("run.ended", {"status": "completed"}, "run.completed"),
        ("run.ended", {}, None),
        ("step.responded", {}, None),
        ("execution.started", {}, None),
        ("session.opened", {}, None),
    ],
)
def test_only_listed_events_leave_the_system(event_type, payload, name):
    """A pattern such as `*` does not match events that were never reviewed for it."""
    assert name_of(event_type, payload) == name


@pytest.mark.parametrize(
    ("selection", "event", "wanted"),
    [
        ({}, ("request.opened", REQUEST), True),
        ({}, ("run.failed", RUN), True),
        ({}, ("run.completed", RUN), False),
        ({}, ("request.decided", REQUEST), False),
        ({"events": ["request.*"]}, ("request.decided", REQUEST), True),
        ({"events": ["request.*"]}, ("run.failed", RUN), False),
        ({"agents": ["reader"]}, ("request.opened", REQUEST), True),
        ({"agents": ["wri*"]}, ("request.opened", REQUEST), True),
        ({"agents": ["writer/reader"]}, ("request.opened", REQUEST), False),
        ({"agents": ["other"]}, ("request.opened", REQUEST), False),
        ({"tools": ["pay_*"]}, ("request.opened", REQUEST), True),
        ({"tools": ["shell"]}, ("request.opened", REQUEST), False),
        ({"tools": ["*"]}, ("run.failed", RUN), False),
        ({"rules": ["refunds-*"]}, ("request.opened", REQUEST | {"rule": "refunds-ask"}), True),
        ({"rules": ["refunds-*"]}, ("request.opened", REQUEST | {"rule": "default"}), False),
        ({"rules": ["*"]}, ("run.failed", RUN), False),
        ({"risk_at_least": "medium"}, ("request.opened", REQUEST), True),
        ({"risk_at_least": "high"}, ("request.opened", REQUEST), False),
        ({"risk_at_least": "low"}, ("run.failed", RUN), False),
        ({"risk_at_least": "high"}, ("request.opened", REQUEST | {"risk": "a later word"}), True),
    ],
)
def test_a_channel_chooses_by_event_agent_tool_rule_and_risk(selection, event, wanted):
    """An event without tool, rule or risk fails a limit on them; an unknown risk counts as the highest."""
    name, about = event
    assert Selection(**selection).wants(name, **about) is wanted


def test_default_events_exist():
    """The default channel gets everything that waits, and failed runs."""
    assert set(DEFAULT_EVENTS) <= set(NOTIFIABLE)
