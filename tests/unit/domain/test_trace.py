"""The trace of a run: its ids are derived, and a header from outside is honoured or changes nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.runs.trace import RunTrace, read_traceparent, span_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STORED = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")


def test_ids_follow_from_the_run_and_from_what_the_span_is_about() -> None:
    """The same at every time and in every process; different for each run, kind and thing."""
    spans = [
        span
        for run_id in ("run_1", "run_2")
        for own in [RunTrace.of(run_id, None)]
        for span in (own.run, own.step(1), own.step(2), own.model_request(1), own.call("1"), own.request("1"))
    ]
    assert len({span.span_id for span in spans}) == len(spans)
    assert len({span.trace_id for span in spans}) == 2
    assert RunTrace.of("run_1", None).call("c") == RunTrace.of("run_1", None).call("c")


def test_a_callers_span_is_the_parent_and_its_decision_counts() -> None:
    """The same trace, below it; sampled as it says."""
    own = RunTrace.of("run_1", read_traceparent(f"00-{TRACE}-{SPAN}-00"))
    assert own.run.trace_id == TRACE
    assert own.parent == span_of(f"00-{TRACE}-{SPAN}-00")
    assert own.sampled is False


@pytest.mark.parametrize("caller", [None, f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"])
def test_a_sub_agents_run_is_below_the_call_that_it_answers(caller: str | None) -> None:
    """In the same trace, at every depth, and sampled like the first run."""
    top = RunTrace.of("run_1", caller)
    below = RunTrace.of("run_2", top.stored_below("c"))
    lowest = RunTrace.of("run_3", below.stored_below("d"))
    assert (below.parent, lowest.parent) == (top.call("c"), below.call("d"))
    assert {below.trace_id, lowest.trace_id} == {top.trace_id}
    assert {below.sampled, lowest.sampled} == {top.sampled}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"01-{TRACE}-{SPAN}-01-{'x' * 600}",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        "\u0660\u0660-" + "\u0664" * 32 + "-" + "\u0664" * 16 + "-\u0660\u0661",
    ],
)
def test_a_header_that_is_none_changes_nothing(header: str | None) -> None:
    """The run begins a trace of its own, as without a header."""
    assert read_traceparent(header) is None


def test_a_later_versions_header_counts_as_far_as_this_one_knows_it() -> None:
    """As the standard asks: version 00 is passed on, with the one flag that it has."""
    assert read_traceparent(f"01-{TRACE}-{SPAN}-03-more") == f"00-{TRACE}-{SPAN}-01"
    assert read_traceparent(f"00-{TRACE}-{SPAN}-02") == f"00-{TRACE}-{SPAN}-00"


@given(st.text(max_size=80))
def test_whatever_is_sent_is_none_or_of_the_stored_form(header: str) -> None:
    """Nothing else reaches the store, and whatever is there can be read."""
    stored = read_traceparent(header)
    assert stored is None or STORED.fullmatch(stored)
    assert len(RunTrace.of("run_1", header).run.span_id) == 16
