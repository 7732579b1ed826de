"""Whether a case's run is as expected, and why not, in words. Only ``check`` runs a builder's code."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pydantic import JsonValue

from turngate.domain.runs.outcomes import describe_outcome
from turngate.domain.tools.results import Failure
from turngate.evals.cases import Bounds, Called, Expect, Text
from turngate.evals.facts import CaseRun
from turngate.evals.patterns import fits, names_tool, same
from turngate.wire.calls import CallView

MAX_QUOTED: Final = 300
AT_LEAST_ONCE: Final = Bounds(min=1)
NEVER: Final = Bounds(max=0)


def reasons(expect: Expect, run: CaseRun) -> list[str]:
    """Return why a run is not as expected; empty: it is."""
    return [
        *_outcome(expect, run),
        *_text(expect.text, run.final_text),
        *_calls(expect, run.calls),
        *_bounds(expect, run),
    ]


async def check_reasons(check: Callable[..., Any], run: CaseRun) -> list[str]:
    """Return why a builder's function fails a run.

    False and a text fail it; True, None and an empty text do not. An error in the function fails it, too.
    """
    try:
        verdict = check(run)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except AssertionError as error:
        return [f"check: {str(error) or 'an assertion does not hold'}"]
    except Exception as error:  # noqa: BLE001 - a builder's function may raise anything
        return [f"check raised {type(error).__name__}: {error}"]
    if isinstance(verdict, str):
        return [f"check: {verdict}"] if verdict else []
    if verdict is None or verdict is True:
        return []
    if verdict is False:
        return ["check returned False"]
    return [f"check returned {verdict!r}: it must return True, False, a text or None"]


def _outcome(expect: Expect, run: CaseRun) -> Iterator[str]:
    if run.outcome != expect.outcome:
        last = run.runs[-1]
        outcome = describe_outcome(run.outcome, error_class=last.error_class, by=last.ended_by)
        reason = f": {last.reason}" if last.reason else ""
        yield f"the outcome is {outcome or 'open: the run has not ended'}, not {expect.outcome}{reason}"


def _text(text: Text, answer: str) -> Iterator[str]:
    for each in text.contains:
        if each not in answer:
            yield f"the answer does not contain {each!r}: {_quoted(answer)}"
    for each in text.lacks:
        if each in answer:
            yield f"the answer contains {each!r}: {_quoted(answer)}"
    if text.matches is not None and re.search(text.matches, answer) is None:
        yield f"the answer does not match {text.matches!r}: {_quoted(answer)}"
    if "equals_json" in text.model_fields_set:
        try:
            equal = same(text.equals_json, json.loads(answer))
        except ValueError:
            yield f"the answer is not JSON: {_quoted(answer)}"
        else:
            if not equal:
                yield f"the answer is not {json.dumps(text.equals_json, ensure_ascii=False)}: {_quoted(answer)}"


def _calls(expect: Expect, calls: Sequence[CallView]) -> Iterator[str]:
    wrong = [reason for each in expect.calls if (reason := _number(each, calls, each.count or AT_LEAST_ONCE))]
    yield from wrong
    if expect.in_order and not wrong:
        rest = iter(calls)
        for each in expect.calls:
            # `any` stops the iterator after the call that fits: the next pattern continues from there.
            if (each.count or AT_LEAST_ONCE).min > 0 and not any(_is(each, call) for call in rest):
                yield f"{each} was not called in its place: {_names(calls)}"
                break
    for each in expect.not_called:
        yield from filter(None, [_number(each, calls, each.count or NEVER)])


def _number(wanted: Called, calls: Sequence[CallView], bounds: Bounds) -> str | None:
    """Return what is wrong with how often a call was made, or None."""
    number = sum(_is(wanted, call) for call in calls)
    if bounds.hold(number):
        return None
    return f"{wanted} was called {number} time(s), not {bounds}: {_similar(calls, wanted)}"


def _bounds(expect: Expect, run: CaseRun) -> Iterator[str]:
    if expect.asks is not None and not expect.asks.hold(len(run.asks)):
        tools = ", ".join(request.tool_name for request in run.asks) or "nothing"
        yield f"people were asked {len(run.asks)} time(s), not {expect.asks}: {tools}"
    if expect.max_steps is not None and run.steps > expect.max_steps:
        yield f"it took {run.steps} steps, and {expect.max_steps} is the most"
    if expect.max_tokens is not None and run.tokens > expect.max_tokens:
        yield f"it took {run.tokens:,} tokens, and {expect.max_tokens:,} is the most"
    if expect.max_cost is not None and (run.cost is None or run.cost > expect.max_cost):
        cost = "an unknown amount (a model has no price)" if run.cost is None else f"{run.cost:f}"
        yield f"it cost {cost}, and {expect.max_cost:f} is the most"


def _is(wanted: Called, call: CallView) -> bool:
    return (
        names_tool(wanted.tool, call.tool_name)
        and (wanted.args is None or fits(wanted.args, _decoded(call.input)))
        and wanted.result in {None, _result(call)}
    )


def _result(call: CallView) -> str | None:
    if call.result is None:
        return None
    return call.result.kind if isinstance(call.result, Failure) else "ok"


def _decoded(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _similar(calls: Sequence[CallView], wanted: Called) -> str:
    similar = [call for call in calls if names_tool(wanted.tool, call.tool_name)]
    return "; ".join(f"{call.tool_name} {_quoted(call.input)} → {_result(call)}" for call in similar) or _names(calls)


def _names(calls: Sequence[CallView]) -> str:
    return ", ".join(call.tool_name for call in calls) or "no calls were made"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")
