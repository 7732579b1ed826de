"""What needs a person each time: no rule, grant or judge allows such a call, nor does an edit lead to it unseen."""

from __future__ import annotations

from typing import Any, Final

from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.tool import ProcessConfinement, Tool, ToolManifest

UNCONFINED: Final = "unconfined"
NETWORK: Final = "network"
MAY_HAVE_HAPPENED: Final = "may-have-happened"
"""The rules by which such calls are asked about: their processes would run unconfined, or with the network; the same ``once``
call started before, and no one knows whether it took effect (I3)."""
SAME_CALL: Final = "The same call started before, and no one knows whether it took effect. This would be another."
REPEATED_BY_EDIT: Final = "it may have happened already"
"""What makes an edited call one that is asked about again."""


def always_asked(verdict: Verdict, tool: Tool, params: Any, *, may_have_happened: bool = False) -> Verdict:
    """Return the verdict for a call of the tool, which a person is asked about each time where that is needed.

    Rules and grants weren't written for a process that can reach the inbox, or other machines, nor for a call that would happen
    twice without anyone seeing it; nor does a judge know of that. ``params``: decoded. ``may_have_happened``: of the same call.
    """
    if verdict.answer != "allow" and not verdict.judgeable:
        return verdict
    if may_have_happened and tool.effect == "once":
        return asked_as_repeat(verdict)
    confinement = None if tool.confinement is None else tool.confinement(params)
    if confinement is None or not confinement.always_asks:
        return verdict
    if verdict.answer == "ask":
        return verdict.model_copy(update={"judgeable": False})
    rule = NETWORK if confinement.confined else UNCONFINED
    return Verdict(answer="ask", rule=rule, reason=confinement.text, risk="high")


def asked_as_repeat(verdict: Verdict) -> Verdict:
    """Return the verdict for a call that may have happened already, and that rules allow, or ask about: on their terms."""
    return Verdict(answer="ask", rule=MAY_HAVE_HAPPENED, reason=SAME_CALL, risk="high", terms=verdict.terms)


def wider_by_edit(
    manifest: ToolManifest,
    edited: str,
    *,
    original: str,
    confinement: ProcessConfinement | None,
    original_confinement: ProcessConfinement | None,
) -> str | None:
    """Return in what an edited call may reach more than the one that a person was shown, in words for people; None: in nothing.

    ``edited``, ``original``: their arguments. ``confinement``: of the edited call; None: none, or not known.
    """
    wider = None if confinement is None else confinement.wider_than(original_confinement)
    if wider is not None:
        return wider
    known = manifest.references_in(original)
    added = [name for name in manifest.references_in(edited) if name not in known]
    return f"it gets the secret {added[0]!r}" if added else None
