"""Orders: what a caller asks the API to start or create. Clients build an order, and the API's operations take it whole.

Only the types of an order are checked: the API checks bounds where a body arrives, and the operations check
what only they can know. Imports nothing but the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from turngate.domain.agents.schedules import DEFAULT_CATCH_UP_SECONDS, Overlap, Timetable
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.requests import Resolution, UnattendedAsks, Verb, WhileRunning
from turngate.domain.tools.external import ExternalMessage, ExternalTool
from turngate.domain.tools.results import Failure, Ok


class Order(BaseModel):
    """The base of every order: frozen, strict, without unknown members."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)  # a client sends few of them

    @model_validator(mode="wrap")
    @classmethod
    def _or_invalid_input(cls, members: object, build: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise InvalidInputError for invalid members, so that code that builds an order catches what the API raises."""
        try:
            return build(members)
        except ValidationError as error:
            problems = [
                {"pointer": "".join(f"/{part}" for part in each["loc"]), "message": each["msg"]}
                for each in error.errors(include_url=False)
            ]
            words = "; ".join(f"{each['pointer']}: {each['message']}" for each in problems)
            raise InvalidInputError(words, errors=problems) from None

    def members(self) -> dict[str, Any]:
        """Return the order as the members of a JSON object, without those that have their default."""
        return self.model_dump(mode="json", exclude_defaults=True)


class StartOrder(Order):
    """A new run.

    ``agent``: its name. ``input``: the message that it starts with, 1 to 100,000 characters. ``conversation_id``: continue this
    conversation; None begins a new one. ``workspace``: an existing directory on the server's machine, absolute. ``model``: in
    place of the agent's own, ``provider:name`` or a profile's name. ``unattended``: no one watches the inbox, and this
    is what happens to a call that would ask (``deny``, ``park`` or ``rules``); None: someone does.
    """

    agent: str
    input: str
    conversation_id: str | None = None
    workspace: str | None = None
    model: str | None = None
    unattended: UnattendedAsks | None = None

    def fingerprint(self, by: str) -> str:
        """Return a digest that is equal for the same order from the same person: what an Idempotency-Key stands for."""
        parts = [self.agent, self.input, self.conversation_id or "", self.workspace or "", self.model or ""]
        if self.unattended:
            parts.append(self.unattended)
        return framed_sha256(by, *parts)


class OverridesOrder(Order):
    """How a new run differs from an earlier one. None: it does not.

    ``step``: a closed step of the earlier run to begin after, from 1. ``agent``: another agent, with its own model.
    ``model``: ``provider:name`` or a profile's name. ``instructions``: in place of the agent's. ``tools``: names; the agent
    has only these of its tools. ``policy``: TOML rules in place of the app's rules, the stored ones and every grant.
    ``plain``: inherit none of the earlier run's overrides of instructions, tools and policy.
    """

    step: int | None = None
    agent: str | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Sequence[str] | None = None
    policy: str | None = None
    plain: bool = False

    @property
    def overrides_digest(self) -> str:
        """Equal for the same instructions, tools, policy and ``plain``; empty if the order has none of them."""
        if not self.plain and self.instructions is None and self.tools is None and self.policy is None:
            return ""
        texts = ["-" if text is None else f"+{text}" for text in (self.instructions, self.policy)]
        tools = ["-"] if self.tools is None else ["+", *self.tools]
        return framed_sha256(*texts, str(self.plain), *tools)

    @property
    def step_text(self) -> str:
        """The step as text; empty if there is none."""
        return "" if self.step is None else str(self.step)


class ForkOrder(OverridesOrder):
    """A fork: a run in a new conversation that shares another run's past up to a closed step; without ``step``, the newest.

    ``text``: the fork's first message, 1 to 100,000 characters; only a fork's plan may leave it out. ``workspace``: in place
    of the earlier run's. ``policy`` needs the scope ``admin``. ``summarise``: begin with a summary of the past, written by the
    fork's model, instead of the past itself.
    """

    text: str = ""
    workspace: str | None = None
    summarise: bool = False

    def fingerprint(self, by: str, run_id: str) -> str:
        """Return a digest that is equal for the same order from the same person: what an Idempotency-Key stands for.

        It covers the order as it was sent, not what it resolved to: a live run's newest step changes.
        """
        parts = ["fork", run_id, self.step_text, self.text, self.agent or "", self.model or "", self.workspace or ""]
        if self.overrides_digest:
            parts.append(self.overrides_digest)
        if self.summarise:
            parts.append("summarise")
        return framed_sha256(by, *parts)


class DryRunOrder(OverridesOrder):
    """A dry run: another run again, with its recorded results and without any effect; without ``step``, from the start."""

    def fingerprint(self, by: str, run_id: str) -> str:
        """Return a digest that is equal for the same order from the same person: what an Idempotency-Key stands for."""
        return framed_sha256(
            by, "replay", run_id, self.step_text, self.agent or "", self.model or "", self.overrides_digest
        )


class ScheduleOrder(Order):
    """A schedule: a run of ``agent`` with ``input``, whenever the timetable says so, unattended.

    ``name``: unique; letters, digits, ``.``, ``_`` and ``-``. ``conversation``: each run begins a ``new`` one, or all
    ``continue`` one: ``conversation_id``, None: the schedule's own. ``workspace``, ``model``, ``unattended``: as in
    :class:`StartOrder`. ``overlap``: what happens to a fire while the previous run is live: ``skip``, ``buffer_one`` or
    ``allow``. ``catch_up_seconds``: at least 10; a fire that is later than this is missed. ``notes``: for people.
    """

    name: str
    agent: str
    input: str
    timetable: Timetable
    conversation: Literal["new", "continue"] = "new"
    conversation_id: str | None = None
    workspace: str | None = None
    model: str | None = None
    unattended: UnattendedAsks = "park"
    overlap: Overlap = "skip"
    catch_up_seconds: int = DEFAULT_CATCH_UP_SECONDS
    notes: str = ""


class ScheduleChange(Order):
    """A change of a schedule: new values for members of its :class:`ScheduleOrder`. None: no change.

    ``workspace``, ``model``: an empty text takes it away.
    """

    name: str | None = None
    agent: str | None = None
    input: str | None = None
    timetable: Timetable | None = None
    workspace: str | None = None
    model: str | None = None
    unattended: UnattendedAsks | None = None
    overlap: Overlap | None = None
    catch_up_seconds: int | None = None
    notes: str | None = None

    def applied_to(self, order: ScheduleOrder) -> ScheduleOrder:
        """Return the order with this change."""
        changed = {name: value for name, value in self if value is not None}
        changed |= {name: None for name in ("workspace", "model") if changed.get(name) == ""}
        return ScheduleOrder.model_validate({**dict(order), **changed})


MAX_LOOKED_MS: Final = 86_400_000
"""One day."""


class Look(Order):
    """How the decider looked at a request before they sent the decision, as their browser or terminal says: no proof.

    ``looked_ms``: for how many milliseconds the request was shown, at most :data:`MAX_LOOKED_MS`. ``seen_percent``: how much
    of its call was on the screen, 0 to 100. None: not known.
    """

    looked_ms: int | None = None
    seen_percent: int | None = None


class DecisionOrder(Look):
    """What a person decides about one request.

    ``verb``: one of the request's ``allowed_verbs``. ``digest``: the request's: of the call as it was shown, which is the only
    one that this decides. ``args``: exact JSON text: edited arguments, an answer, or what the call returned when it
    ``happened`` (None: not known). ``message``: what the agent reads, such as the reason of a rejection; at most 10,000
    characters. ``outcome``: for a request of kind ``outcome`` only. ``grant``: with approve or edit: approve calls like this
    from now on; saved only if this decision wins. ``answer_waiting``: with a grant in which every argument has one value: also
    approve the requests that wait and have the same arguments, byte for byte. ``confirm``: the tool's name, typed by the
    person: needed after many approvals within a minute.
    """

    verb: Verb
    digest: str
    args: str | None = None
    message: str = ""
    outcome: Resolution | None = None
    grant: WantedGrant | None = None
    answer_waiting: bool = False
    confirm: str = ""


class BulkItem(Look):
    """One of many requests, with the digest of its call as it was shown. ``decision_id`` None: made from the key, or new."""

    request_id: str
    digest: str
    decision_id: str | None = None


class BulkOrder(Order):
    """One decision of many requests, 1 to 100. ``message``: what the agents read.

    ``confirm``: as in :class:`DecisionOrder`; ``approve`` for calls of several tools. ``grant_id``: a grant of the person who
    decides; each approval counts for it, and what it doesn't cover or has no use for is not decided.
    """

    verb: Literal["approve", "reject"]
    items: Sequence[BulkItem]
    message: str = ""
    confirm: str = ""
    grant_id: str | None = None

    def decision(self, item: BulkItem) -> DecisionOrder:
        """Return the decision about one of the requests."""
        return DecisionOrder(
            verb=self.verb,
            digest=item.digest,
            message=self.message,
            looked_ms=item.looked_ms,
            seen_percent=item.seen_percent,
        )


class ExternalCallOrder(Order):
    """A call that another program would run itself: may it?

    ``source``: names the program in policy and inbox: lower-case letters, digits, ``_`` and ``-``, at most 50 characters.
    ``tool_call_id``: unique within the source; 1 to 255 characters. ``tool``: what it is, as people and policy see it.
    ``input``: its arguments, as the exact JSON text that will run. ``context``: more for the person who decides.
    ``turn``: the sender's id for the part of its conversation in which the call was made, 1 to 255 characters. A call that a
    person rejected in a turn is closed without a request when it is sent again in that turn; without a turn: for an hour.
    ``conversation``: what led to the call, oldest first, at most 200 messages of together 200,000 characters. People see the
    task, the newest message and where the arguments come from, as told by this program. No rule believes it.
    """

    source: str
    tool_call_id: str
    tool: ExternalTool
    input: str
    context: str = ""
    turn: str | None = None
    conversation: tuple[ExternalMessage, ...] = ()


class ReportOrder(Order):
    """The result of an external call. ``attempt``: the one that ran it. ``result`` None: the program does not know."""

    attempt: str
    result: Ok | Failure | None


class MessageOrder(Order):
    """A message into a run's conversation. ``input``: 1 to 100,000 characters.

    ``while_running``: what a live run does with it (``queue``, ``inject`` or ``supersede``); None: as its agent declares.
    """

    input: str
    while_running: WhileRunning | None = None


class GrantOrder(Order):
    """A grant without a decision. Scope ``run`` has a ``run_id``, ``agent`` an ``agent``, ``everyone`` neither."""

    grant: WantedGrant
    run_id: str | None = None
    agent: str | None = None


class RuleOrder(Order):
    """One rule to store among the others.

    ``rule``: TOML with one ``[[rule]]`` table. ``mode``: ``shadow`` only records what the rule would do; ``enforce`` makes it
    count. ``replacing``: the stored rule in whose place it comes; None: the one of the same name, or else it comes last.
    ``if_version``: the version that was changed, 0 for none; None: any. ``comment``: the reason, for people.
    """

    rule: str
    mode: Literal["shadow", "enforce"]
    replacing: str | None = None
    if_version: int | None = None
    comment: str = ""


class PolicyQuestion(Order):
    """A call to ask policy about: what is its verdict, and why?

    ``args``: exact JSON text. ``agent``: who makes the call; None: the agent that has the tool, if it is the only one.
    ``workspace``: the run's directory; None: it has none. ``unattended``: what happens to requests of the run; None: it is
    attended. ``policy``: TOML to try instead of the stored rules.
    """

    tool: str
    args: str = "{}"
    agent: str | None = None
    workspace: str | None = None
    unattended: UnattendedAsks | None = None
    policy: str | None = None
