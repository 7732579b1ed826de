"""What ``?`` shows."""

from __future__ import annotations

from typing import Final

from turngate.frontends.tui.texts import Folded, at, folded

_KEYS: Final = (
    ("Everywhere", ()),
    ("1 / 2 / 3", "the inbox / the runs / the grants"),
    ("j k, arrows", "move, or scroll"),
    ("Space, Page Down", "scroll on; Home and End go to the ends"),
    ("Escape, u", "back"),
    ("F5", "look again"),
    ("? / q", "this help / quit; runs go on"),
    ("Inbox", ()),
    ("Enter", "open the request"),
    ("x", "choose several; then a or r shows all of them"),
    ("a r e", "open it, to be decided there"),
    ("/", "show only some of them"),
    ("Request", ()),
    ("a a", "approve what is on screen; high risk: its name"),
    ("g", "approve it, and calls like it from now on"),
    ("r", "reject, with a reason that the agent reads"),
    ("e", "edit the arguments, then approve"),
    ("s", "answer a question, or in place of a tool"),
    ("h / d d / t t", "it happened / did not: run it / nobody knows"),
    ("c", "claim it, or give it back; c c takes it over"),
    ("w", "write a comment to other people"),
    ("v", "the conversation that led to it"),
    ("n / o", "next request / its run"),
    ("Form", ()),
    ("Tab, arrows", "next field; Space and arrows pick one of several"),
    ("F2", "all of it as JSON, or as fields again"),
    ("Ctrl+S / Escape", "send / leave, and keep what was typed"),
    ("Run", ()),
    ("p", "hold the run, or let it go on"),
    ("m", "send it a message, and say when it is read"),
    ("s", "give it another model"),
    ("i", "interrupt it"),
    ("t", "retry it, once it failed or was interrupted"),
    ("f", "fork it: go on from one of its steps"),
    ("w", "why it ended so, or what it waits for"),
    ("o", "open what it waits for"),
    ("Grants", ()),
    ("r r", "revoke it"),
)


def _help() -> Folded:
    lines = []
    for keys, meaning in _KEYS:
        lines.append(at("  ", f"{keys:<18}", str(meaning)) if meaning else at("", (keys, "bold")))
    return folded(lines)


HELP: Final = _help()
