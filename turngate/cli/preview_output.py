"""A preview on the terminal: what a fork or a dry replay would use again, what is not undone, what would run anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turngate.cli import terminal
from turngate.text.plain_text import plain_line
from turngate.wire.plans import PastCall, Preview


def show_preview(found: Preview, given: Mapping[str, str]) -> None:
    """Print it. ``given``: what the server was not told of, such as a file's name, by what it changes."""
    where = "its beginning" if found.step is None else f"step {found.step}"
    what = "a dry replay" if found.dry else "a fork"
    terminal.line((f"{what} of run {found.run_id} from {where}", "bold"), "  nothing was started")
    terminal.line(f"the model reads {_read(found)}")
    if found.dry:
        terminal.line(
            f"no tool runs and nobody is asked; recorded results that calls are answered from: {found.reused_total:,}"
        )
    else:
        # Where a summary stands in place of messages, the model does not read the results of their calls.
        stands = (
            "calls whose recorded results it goes on from"
            if found.replaced_by is None
            else "calls of that past, none of which runs again"
        )
        terminal.line(f"{stands}: {found.reused_total:,}")
    _calls(found.reused, found.reused_total)
    if not found.dry:
        _not_undone(found)
        terminal.line(
            f"calls behind that step, which the model may make again, judged and asked for anew: {found.again_total:,}"
        )
        _calls(found.again, found.again_total, again=True)
    told: dict[str, str] = {each.name: f"{each.was} → {each.will_be}" for each in found.differences}
    told.update(given)
    for name, change in told.items():
        terminal.line((f"{name} ", "dim"), plain_line(change, 300))
    if found.needs_admin:
        terminal.line(("it would live under a policy of its own: that takes the scope admin, or --plain", "yellow"))


def _read(found: Preview) -> str:
    read = "1 message as it is" if found.messages == 1 else f"{found.messages:,} messages as they are"
    earlier = "1 earlier one" if found.replaced == 1 else f"{found.replaced:,} earlier ones"
    match found.replaced_by:
        case "summary":
            return f"{read}, and a summary in place of {earlier}"
        case "trim":
            return f"{read}; {earlier} {'is' if found.replaced == 1 else 'are'} left out"
        case "new_summary":
            past = "the 1 message" if found.replaced == 1 else f"the {found.replaced:,} messages"
            return f"a summary of {past} of the past, which a model writes first, and nothing else of it"
        case _:
            return read


def _not_undone(found: Preview) -> None:
    if not found.effects:
        terminal.line("nothing that the run did has an effect to undo")
        return
    terminal.line(("not undone:", "yellow"))
    for each in found.effects:
        unknown = f", of {each.unknown} nobody knows the end" if each.unknown else ""
        times = "1 call" if each.calls == 1 else f"{each.calls:,} calls"
        terminal.line(f"  {plain_line(each.tool_name, 64)}  {times}, {each.effect}{unknown}")


def _calls(shown: Sequence[PastCall], total: int, *, again: bool = False) -> None:
    for each in shown:
        parts = [each.verdict and {"allow": "allowed", "ask": "asked", "deny": "denied"}[each.verdict], each.decision]
        told = ", ".join([*(part for part in parts if part), each.result or "open"])
        twice = again and each.happened
        happened = ("  it has happened: made again, it may happen twice", "yellow") if twice else ""
        name = (plain_line(each.tool_name, 64), "bold")
        terminal.line(f"  step {each.step}  ", name, f"  {plain_line(each.input, 60)}  ", (told, "dim"), happened)
    if total > len(shown):
        terminal.line(f"  … {total - len(shown):,} more")
