"""What a fork or a dry run would use again, what is not undone, and what may run again: lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from turngate.domain.text.sentences import counted
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.plans import ForkPlan, PastCall

PlanLine = tuple[Piece, ...]
ANSWERS: Final = {"allow": "allowed", "ask": "asked", "deny": "denied"}


def plan_lines(plan: ForkPlan, local: Mapping[str, str] | None = None) -> Iterator[PlanLine]:
    """Yield a plan's lines. ``local``: changes by name that the plan doesn't know, because only the caller does."""
    where = "its beginning" if plan.step is None else f"step {plan.step}"
    what = "a dry run" if plan.dry else "a fork"
    yield (f"{what} of run {plan.run_id} from {where}", "bold"), "  nothing was started"
    yield (f"the model reads {_read(plan)}",)
    if plan.dry:
        yield (f"no tool runs and no one is asked; recorded results that answer calls: {plan.reused_total:,}",)
    else:
        # Where a summary replaces messages, the model does not read the results of their calls.
        calls = "calls whose recorded results it uses"
        if plan.replaced_by is not None:
            calls = "calls of that past, none of which runs again"
        yield (f"{calls}: {plan.reused_total:,}",)
    yield from _calls(plan.reused, plan.reused_total)
    if not plan.dry:
        yield from _not_undone(plan)
        again = "calls after that step, which the model may make again and which are judged again"
        yield (f"{again}: {plan.again_total:,}",)
        yield from _calls(plan.again, plan.again_total, again=True)
    changes: dict[str, str] = {each.name: f"{each.was} → {each.will_be}" for each in plan.differences}
    for name, change in {**changes, **(local or {})}.items():
        yield (f"{name} ", "dim"), plain_line(change, 300)
    if plan.needs_admin:
        yield (("it would have a policy of its own, which needs the scope admin", "yellow"),)


def _read(plan: ForkPlan) -> str:
    read = "1 message as it is" if plan.messages == 1 else f"{plan.messages:,} messages as they are"
    earlier = "1 earlier one" if plan.replaced == 1 else f"{plan.replaced:,} earlier ones"
    match plan.replaced_by:
        case "summary":
            return f"{read}, and a summary instead of {earlier}"
        case "trim":
            return f"{read}; {earlier} {'is' if plan.replaced == 1 else 'are'} left out"
        case "new_summary":
            past = f"the {counted(plan.replaced, 'message')}"
            return f"a summary of {past} of the past, which a model writes first, and nothing else"
        case _:
            return read


def _not_undone(plan: ForkPlan) -> Iterator[PlanLine]:
    if not plan.effects:
        yield ("the run did nothing that would have to be undone",)
        return
    yield (("not undone:", "yellow"),)
    for each in plan.effects:
        unknown = f", the outcome of {each.unknown} is unknown" if each.unknown else ""
        yield (
            f"  {plain_line(each.tool_name, 64)}  {counted(each.calls, 'call')}, {plain_line(each.effect, 40)}{unknown}",
        )


def _calls(calls: Sequence[PastCall], total: int, *, again: bool = False) -> Iterator[PlanLine]:
    for each in calls:
        parts = [each.verdict and ANSWERS[each.verdict], each.decision]
        summary = ", ".join([*(part for part in parts if part), each.result or "open"])
        twice = again and each.happened
        happened = ("  it has happened; if the model makes it again, it may happen twice", "yellow") if twice else ""
        name = (plain_line(each.tool_name, 64), "bold")
        yield (
            f"  step {each.step}  ",
            name,
            f"  {plain_line(each.input, 60)}  ",
            (plain_line(summary, 80), "dim"),
            happened,
        )
    if total > len(calls):
        yield (f"  … {total - len(calls):,} more",)
