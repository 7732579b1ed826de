"""What an editor offers about a request: the answers this person may give there, and which decision each one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from acp.schema import PermissionOption

from turngate.client import TurngateClient
from turngate.domain.errors import TurngateError
from turngate.domain.policy.grants import WantedGrant
from turngate.frontends.acp import render as show
from turngate.text.run_words import unseen_words
from turngate.wire.access import MeView
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail

DECIDING: Final = frozenset({"requests:decide", "admin"})
GRANT_SECONDS: Final = 3600
GRANT_USES: Final = 100
MAX_PATTERN_CHARS: Final = 300
"""A longer pattern would be cut where it is shown, and no one should grant what they cannot see."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer that the editor offers, and the decision that it is.

    ``form``: what has to be filled in before it counts: a ``reason``, or the tool's ``name``, typed out.
    """

    option: PermissionOption
    order: DecisionOrder
    form: Literal["reason", "name"] | None = None


async def choices_of(client: TurngateClient, request: RequestDetail, me: MeView, *, forms: bool) -> list[Choice]:
    """Return what this person may answer in the editor; what needs more than it can ask is left to the page.

    ``forms``: the editor can ask for words.
    """
    if not may_decide(request, me):
        return []
    digest = request.digest
    if request.kind == "outcome":
        option = _option("tell", "Tell the agent that no one knows", "reject_once")
        return [Choice(option=option, order=DecisionOrder(verb="respond", digest=digest, outcome="tell_model"))]
    approve = DecisionOrder(verb="approve", digest=digest)
    reject = DecisionOrder(verb="reject", digest=digest)
    choices: list[Choice] = []
    if "approve" in request.allowed_verbs and request.risk != "high":
        choices.append(Choice(option=_option("allow", "Allow once", "allow_once"), order=approve))
        choices += await _grant(client, request)
    elif "approve" in request.allowed_verbs and forms:
        option = _option("allow", "Allow once, by typing the tool's name", "allow_once")
        choices.append(Choice(option=option, order=approve, form="name"))
    if "reject" in request.allowed_verbs:
        choices.append(Choice(option=_option("reject", "Reject", "reject_once"), order=reject))
        if forms:
            option = _option("reject-why", "Reject, and say why", "reject_once")
            choices.append(Choice(option=option, order=reject, form="reason"))
    return choices


def may_decide(request: RequestDetail, me: MeView) -> bool:
    """Tell whether this person may decide such a request at all (I10); the API has the last word."""
    return not DECIDING.isdisjoint(me.scopes) and me.name not in {request.not_by, *request.starters}


def question(request: RequestDetail, page: str, choices: list[Choice], *, forms: bool) -> list[show.Content]:
    """Return what a person needs to know of a request besides the call: why it is asked, and where else to answer."""
    facts = [f"risk {request.risk} · effect {request.manifest.effect} · asked by {request.rule}: {request.reason}"]
    facts += [f"{each.words}." for each in request.same_calls]
    if words := unseen_words(request.unseen_secrets):
        facts.append(words)
    if request.quorum > 1:
        facts.append(f"approvals {request.approvals} of {request.quorum}")
    if (judged := request.judged) is not None:
        facts.append(f"the judge (a model, {judged.model}) {judged.summary}: {judged.reason}")
    return [show.value("\n".join(facts)), show.paragraph(_elsewhere(request, page, choices, forms=forms))]


def filled_in(choice: Choice, request: RequestDetail, content: Mapping[str, object]) -> DecisionOrder | None:
    """Return the decision of a choice whose form was filled in; None: what was typed is not the tool's name."""
    typed = str(content.get(choice.form or "", "")).strip()
    if choice.form == "name" and typed != request.tool_name:
        return None
    if choice.form == "name":
        return choice.order
    return DecisionOrder(verb=choice.order.verb, digest=choice.order.digest, message=typed)


def _elsewhere(request: RequestDetail, page: str, choices: list[Choice], *, forms: bool) -> str:
    if not choices:
        return f"You may not decide this one here: someone who may does at {page}."
    if request.kind == "question":
        return f"This asks for an answer in words: give it at {page}."
    if request.kind == "outcome":
        return f"This call may or may not have happened: say which at {page}."
    if request.risk == "high" and not forms:
        return (
            "This call is of high risk: approving it takes the tool's name typed out, at "
            f"{page} or in a terminal with `turngate watch {request.run_id}`. Here it can be rejected."
        )
    why = "" if forms else ", or say why not"
    return f"To change the arguments{why}: {page}."


async def _grant(client: TurngateClient, request: RequestDetail) -> list[Choice]:
    """Return the answer that grants calls like this one, where the API says that there may be one."""
    try:
        seen = await client.preview_grant(request.id)
    except TurngateError:  # the call can be allowed without
        return []
    pattern = show.marked(seen.says)
    if seen.ungrantable is not None or seen.pattern is None or len(pattern) > MAX_PATTERN_CHARS:
        return []
    grant = WantedGrant(pattern=seen.pattern, scope="run", expires_after_seconds=GRANT_SECONDS, max_uses=GRANT_USES)
    name = f"Always allow in this run, for an hour, at most {GRANT_USES} times: {pattern}"
    order = DecisionOrder(verb="approve", digest=request.digest, grant=grant)
    return [Choice(option=_option("always", name, "allow_always"), order=order)]


def _option(option_id: str, name: str, kind: str) -> PermissionOption:
    return PermissionOption.model_validate({"option_id": option_id, "name": name, "kind": kind})
