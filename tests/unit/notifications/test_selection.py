"""Which events a channel is told of."""

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
def test_only_what_is_on_the_list_is_told_outside(event_type, payload, name):
    """A pattern such as `*` cannot reach events that nobody has thought through."""
    assert name_of(event_type, payload) == name


@pytest.mark.parametrize(
    ("selection", "told", "wanted"),
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
        ({"risk_at_least": "medium"}, ("request.opened", REQUEST), True),
        ({"risk_at_least": "high"}, ("request.opened", REQUEST), False),
        ({"risk_at_least": "low"}, ("run.failed", RUN), False),
        ({"risk_at_least": "high"}, ("request.opened", REQUEST | {"risk": "a later word"}), True),
    ],
)
def test_a_channel_chooses_by_event_agent_tool_and_risk(selection, told, wanted):
    """What has no tool or risk does not pass a limit on them; an unknown risk counts as the gravest."""
    name, about = told
    assert Selection(**selection).wants(name, **about) is wanted


def test_defaults_are_events_there_are():
    """The default channel hears of everything that waits, and of failed runs."""
    assert set(DEFAULT_EVENTS) <= set(NOTIFIABLE)
