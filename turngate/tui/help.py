"""What ``?`` shows."""

from __future__ import annotations

from typing import Final

from turngate.tui.texts import Folded, at, folded

_KEYS: Final = (
    ("Everywhere", ()),
    ("1 / 2", "the inbox / the runs"),
    ("j k, arrows", "move, or scroll"),
    ("Space, Page Down", "scroll on; Home and End go to the ends"),
    ("Escape, u", "back"),
    ("F5", "look again"),
    ("? / q", "this help / quit; runs go on"),
    ("Inbox", ()),
    ("Enter", "open the request"),
    ("x", "choose several; then a or r shows all of them"),
    ("a r e", "open it, to be decided there"),
    ("Request", ()),
    ("a a", "approve what is on screen; high risk: its name"),
    ("r", "reject, with a reason that the agent reads"),
    ("e", "edit the arguments, then approve"),
    ("s", "answer a question, or in place of a tool"),
    ("h / d d / t t", "it happened / did not: run it / nobody knows"),
    ("c", "claim it, or give it back; c c takes it over"),
    ("n / o", "next request / its run"),
    ("Run", ()),
    ("p", "hold the run, or let it go on"),
    ("m", "send it a message"),
    ("i", "interrupt it"),
    ("o", "open what it waits for"),
)


def _help() -> Folded:
    lines = []
    for keys, meaning in _KEYS:
        lines.append(at("  ", f"{keys:<18}", str(meaning)) if meaning else at("", (keys, "bold")))
    return folded(lines)


HELP: Final = _help()
