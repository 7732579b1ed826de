"""Request bodies: strict models without coercion and without unknown members."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turngate.approvals_api.policy.rules import MAX_SOURCE_CHARS
from turngate.approvals_api.requests.answer_check import MAX_MESSAGE_CHARS
from turngate.approvals_api.runs.control import MAX_REASON_CHARS
from turngate.approvals_api.runs.order import MAX_MODEL_CHARS, MAX_TEXT_CHARS
from turngate.approvals_api.runs.overrides import MAX_INSTRUCTIONS_CHARS, MAX_TOOLS
from turngate.approvals_api.v1.parameters import Id
from turngate.domain.identity import MAX_NAME_CHARS, UNBOUND, Scope, TokenBounds
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.requests import Resolution, UnattendedAsks, Verb, WhileRunning
from turngate.store.requests.claims import DEFAULT_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS
from turngate.store.requests.comments import MAX_CHARS
from turngate.wire.orders import MAX_LOOKED_MS, DecisionOrder, DryRunOrder, ForkOrder, MessageOrder, StartOrder

# The operations check these bounds too, for the pages; here they also get into the OpenAPI document.
Text = Annotated[
    str, Field(min_length=1, max_length=MAX_TEXT_CHARS, description="More than white space, and without U+0000.")
]
ModelName = Annotated[
    str,
    Field(
        max_length=MAX_MODEL_CHARS,
        pattern=r"^([!-9;-~]+:[!-~]+|[a-z0-9][a-z0-9_.\-]{0,63})$",
        description="`provider:name`, or the name of a profile.",
    ),
]
Workspace = Annotated[
    str,
    Field(pattern=r"^/[^\u0000]*$", description="An existing directory on the server's machine, absolute."),
]


MAX_STEP: Final = 2**31 - 1
MAX_TOKEN_SECONDS: Final = 10 * 31_536_000
"""Ten years: a longer one might never expire at all."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StartRunBody(_Body):
    """Start a run. ``conversation_id``: continue this conversation. ``model``: instead of the agent's own.

    ``unattended``: no one watches the inbox while it runs. It says what happens to requests: ``deny`` refuses them, ``park``
    lets them wait without expiry, ``rules`` asks if a rule of the policy says so and refuses the rest.
    """

    agent: Id
    input: Text
    conversation_id: Id | None = None
    workspace: Workspace | None = None
    model: ModelName | None = None
    unattended: UnattendedAsks | None = None

    @property
    def order(self) -> StartOrder:
        """The order that the API's operations take."""
        return StartOrder.model_validate(self.model_dump())


class MessageBody(_Body):
    """Send a message to a run's conversation. ``while_running``: what a live run does with it; None: as its agent says."""

    input: Text
    while_running: WhileRunning | None = None

    @property
    def order(self) -> MessageOrder:
        """The order that the API's operations take."""
        return MessageOrder(input=self.input, while_running=self.while_running)


class RetryBody(_Body):
    """Continue where a run ended. ``model``: instead of the run's own."""

    model: ModelName | None = None


Instructions = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_INSTRUCTIONS_CHARS,
        description="Instead of the agent's. More than white space, without U+0000.",
    ),
]
Tools = Annotated[list[Id], Field(max_length=MAX_TOOLS, description="Names: the agent has only these of its tools.")]
PolicySource = Annotated[
    str,
    Field(
        max_length=MAX_SOURCE_CHARS,
        description="TOML: `[[rule]]` tables, instead of the app's rules, the stored rules and all grants.",
    ),
]


class ForkBody(_Body):
    """Continue from a closed step of a run, in a new conversation. ``step``: None: the newest. The rest defaults to the run's.

    ``policy`` needs the scope `admin`. ``plain``: take over none of the run's overrides (instructions, tools, policy).
    ``summarise``: start a new conversation with a summary of the past, written by the fork's model, instead of sharing it.
    """

    text: Text
    step: Annotated[int, Field(ge=1)] | None = None
    agent: Id | None = None
    model: ModelName | None = None
    workspace: Workspace | None = None
    instructions: Instructions | None = None
    tools: Tools | None = None
    policy: PolicySource | None = None
    plain: bool = False
    summarise: bool = False

    @property
    def order(self) -> ForkOrder:
        """The order that the API's operations take."""
        return ForkOrder.model_validate(self.model_dump())


class ReplayBody(_Body):
    """Run a run again from its record, without side effects. ``dry``: required, always ``true``.

    ``step``: the closed step to start after; default: the run's beginning. The rest defaults to the run's.
    """

    dry: Literal[True]
    step: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None
    agent: Id | None = None
    model: ModelName | None = None
    instructions: Instructions | None = None
    tools: Tools | None = None
    policy: PolicySource | None = None
    plain: bool = False

    @property
    def order(self) -> DryRunOrder:
        """The order that the API's operations take."""
        return DryRunOrder.model_validate(self.model_dump(exclude={"dry"}))


class InterruptBody(_Body):
    """Stop a run."""

    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""


class ModelBody(_Body):
    """Switch a live run to another model."""

    model: ModelName


class LookBody(_Body):
    """How the decider looked at the request. It is stored with the decision and changes nothing."""

    looked_ms: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_LOOKED_MS,
            description="For how many milliseconds the request was shown, as the browser or terminal says: no proof.",
        ),
    ] = None
    seen_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description="How much of the call was on the screen, as the browser or terminal says: no proof.",
        ),
    ] = None


class DecisionBody(LookBody):
    """Decide a request. ``args``: any JSON value, kept exactly as it was sent; ``null`` is the same as leaving it out.

    ``confirm``: the tool's name, which a person types after many approvals within a minute. ``answer_waiting``: with a grant in
    which every argument has one value: also approve the requests that wait and have the same arguments, byte for byte.
    """

    decision: Verb
    digest: Annotated[str, Field(description="The request's `digest`: of the call as it was shown.")]
    args: JsonValue = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    outcome: Resolution | None = None
    grant: WantedGrant | None = None
    answer_waiting: bool = False
    confirm: Annotated[str, Field(max_length=255)] = ""

    def order(self, args: str | None) -> DecisionOrder:
        """Return the order that the API's operations take. ``args``: the member's exact text in the body that was sent."""
        return DecisionOrder(
            verb=self.decision,
            digest=self.digest,
            args=args,
            message=self.message,
            outcome=self.outcome,
            grant=self.grant,
            answer_waiting=self.answer_waiting,
            confirm=self.confirm,
            looked_ms=self.looked_ms,
            seen_percent=self.seen_percent,
        )


class NewTokenBody(_Body):
    """Create an API token. ``user``: your own name, so that it acts as you; default: it acts under ``name``.

    ``bounds``: what it may start. Without ``sources``, the source of a machine's external calls is only claimed.
    """

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    scopes: Annotated[list[Scope], Field(min_length=1)]
    user: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    expires_in_seconds: Annotated[int, Field(ge=60, le=MAX_TOKEN_SECONDS)] | None = None
    bounds: TokenBounds = UNBOUND


class ClaimBody(_Body):
    """Claim a request for a while. ``take_over``: even if someone else holds a claim."""

    seconds: Annotated[int, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)] = DEFAULT_SECONDS
    take_over: bool = False


class CommentBody(_Body):
    """A comment on a request, for other people; no model reads it."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)]


_DIGEST: Final = "9f2b1c0e5d7a48c3a6f1e0b9d8c7b6a5f4e3d2c1b0a9f8e7d6c5b4a392817060"
DECISION_EXAMPLES: Final[dict[str, Any]] = {
    "approve": {
        "summary": "Approve the call as it was shown",
        "value": {"decision": "approve", "digest": _DIGEST},
    },
    "edit": {
        "summary": "Approve it with other arguments",
        "value": {"decision": "edit", "digest": _DIGEST, "args": {"order": 1042, "amount_cents": 500}},
    },
    "reject": {
        "summary": "Reject it, and tell the agent why",
        "value": {"decision": "reject", "digest": _DIGEST, "message": "Refund the shipping only."},
    },
    "respond": {
        "summary": "Answer a question with a value that fits its schema",
        "value": {"decision": "respond", "digest": _DIGEST, "args": {"answer": "Use the staging database."}},
    },
    "outcome": {
        "summary": "Say whether a call that may or may not have happened did happen",
        "value": {"decision": "respond", "digest": _DIGEST, "outcome": "did_not_happen"},
    },
}
"""For the OpenAPI document: one body for each kind of answer."""
