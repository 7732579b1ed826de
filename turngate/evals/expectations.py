"""Whether what came of a case is what was expected: the reasons why not, in words. Only ``check`` runs code of others."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pydantic import JsonValue

from turngate.domain.runs.outcomes import outcome_told
from turngate.domain.tools.results import Failure
from turngate.evals.cases import Bounds, Called, Expect, Text
from turngate.evals.facts import CaseRun
from turngate.evals.patterns import fits, names_tool, same
from turngate.wire.calls import CallView

MAX_SHOWN: Final = 300
ONCE_AT_LEAST: Final = Bounds(min=1)
NEVER: Final = Bounds(max=0)


def reasons(expect: Expect, run: CaseRun) -> list[str]:
    """Return why a run is not what was expected; empty: it is."""
    return [
        *_outcome(expect, run),
        *_text(expect.text, run.final_text),
        *_calls(expect, run.calls),
        *_bounds(expect, run),
    ]


async def check_reasons(check: Callable[..., Any], run: CaseRun) -> list[str]:
    """Return what a builder's function has against a run.

    False and a text fail it; True, None and an empty text do not. Whatever the function raises fails it, too.
    """
    try:
        said = check(run)
        if inspect.isawaitable(said):
            said = await said
    except AssertionError as error:
        return [f"check: {str(error) or 'an assertion does not hold'}"]
    except Exception as error:  # noqa: BLE001 - a builder's function may raise anything
        return [f"check raised {type(error).__name__}: {error}"]
    if isinstance(said, str):
        return [f"check: {said}"] if said else []
    if said is None or said is True:
        return []
    return ["check says no" if said is False else f"check gave {said!r}: it gives True, False, a text or None"]


def _outcome(expect: Expect, run: CaseRun) -> Iterator[str]:
    if run.outcome != expect.outcome:
        last = run.runs[-1]
        told = outcome_told(run.outcome, error_class=last.error_class, by=last.ended_by) or "nothing: it goes on"
        yield f"the outcome is {told}, not {expect.outcome}{f': {last.reason}' if last.reason else ''}"


def _text(text: Text, answer: str) -> Iterator[str]:
    for each in text.contains:
        if each not in answer:
            yield f"the answer does not contain {each!r}: {_shown(answer)}"
    for each in text.lacks:
        if each in answer:
            yield f"the answer contains {each!r}: {_shown(answer)}"
    if text.matches is not None and re.search(text.matches, answer) is None:
        yield f"the answer does not match {text.matches!r}: {_shown(answer)}"
    if "equals_json" in text.model_fields_set:
        try:
            is_it = same(text.equals_json, json.loads(answer))
        except ValueError:
            yield f"the answer is not JSON: {_shown(answer)}"
        else:
            if not is_it:
                yield f"the answer is not {json.dumps(text.equals_json, ensure_ascii=False)}: {_shown(answer)}"


def _calls(expect: Expect, calls: Sequence[CallView]) -> Iterator[str]:
    wrong = [said for each in expect.calls if (said := _number(each, calls, each.count or ONCE_AT_LEAST))]
    yield from wrong
    if expect.in_order and not wrong:
        rest = iter(calls)
        for each in expect.calls:
            # `any` leaves the iterator behind the call that fits: the next pattern looks on from there.
            if (each.count or ONCE_AT_LEAST).min > 0 and not any(_is(each, call) for call in rest):
                yield f"{each} was not called in its place: {_names(calls)}"
                break
    for each in expect.not_called:
        yield from filter(None, [_number(each, calls, each.count or NEVER)])


def _number(wanted: Called, calls: Sequence[CallView], bounds: Bounds) -> str | None:
    """Return what is wrong with how often a call was made; None: nothing."""
    number = sum(_is(wanted, call) for call in calls)
    return (
        None if bounds.hold(number) else f"{wanted} was called {number} time(s), not {bounds}: {_made(calls, wanted)}"
    )


def _bounds(expect: Expect, run: CaseRun) -> Iterator[str]:
    if expect.asks is not None and not expect.asks.hold(len(run.asks)):
        asked = ", ".join(request.tool_name for request in run.asks) or "nothing"
        yield f"people were asked {len(run.asks)} time(s), not {expect.asks}: {asked}"
    if expect.max_steps is not None and run.steps > expect.max_steps:
        yield f"it took {run.steps} steps, and {expect.max_steps} is the most"
    if expect.max_tokens is not None and run.tokens > expect.max_tokens:
        yield f"it took {run.tokens:,} tokens, and {expect.max_tokens:,} is the most"
    if expect.max_cost is not None and (run.cost is None or run.cost > expect.max_cost):
        cost = "what nobody has a price for" if run.cost is None else f"{run.cost:f}"
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


def _made(calls: Sequence[CallView], wanted: Called) -> str:
    near = [call for call in calls if names_tool(wanted.tool, call.tool_name)]
    return "; ".join(f"{call.tool_name} {_shown(call.input)} → {_result(call)}" for call in near) or _names(calls)


def _names(calls: Sequence[CallView]) -> str:
    return ", ".join(call.tool_name for call in calls) or "no calls were made"


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")
