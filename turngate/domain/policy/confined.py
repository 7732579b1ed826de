"""What happens to a verdict that allows a call whose processes would run unconfined, or with the network."""

from __future__ import annotations

from typing import Any, Final

from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.tool import Tool

UNCONFINED: Final = "unconfined"
NETWORK: Final = "network"
"""The rules by which such calls are asked about."""


def always_asked(verdict: Verdict, tool: Tool, params: Any) -> Verdict:
    """Return the verdict for a call of the tool: neither a rule nor a grant allows one that needs a person each time.

    They weren't written for a process that can reach the inbox, or other machines. ``params``: decoded.
    """
    if verdict.answer != "allow" or tool.confinement is None:
        return verdict
    confinement = tool.confinement(params)
    if not confinement.always_asks:
        return verdict
    rule = NETWORK if confinement.confined else UNCONFINED
    return Verdict(answer="ask", rule=rule, reason=confinement.text, risk="high")
