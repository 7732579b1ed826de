"""What clients send as bodies: strict models without coercion, and without members we do not know."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from approvals_api.policy.rules import MAX_SOURCE_CHARS
from approvals_api.requests.answer_check import MAX_MESSAGE_CHARS
from approvals_api.runs.control import MAX_REASON_CHARS
from approvals_api.runs.order import MAX_MODEL_CHARS, MAX_TEXT_CHARS
from approvals_api.runs.overrides import MAX_INSTRUCTIONS_CHARS, MAX_TOOLS
from approvals_api.v1.parameters import Id
from turngate.domain.identity import MAX_NAME_CHARS, Scope
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.requests import Outcome, UnattendedAsks, Verb, WhileRunning
from turngate.domain.runs.inbox import MAX_QUERY_CHARS
from turngate.store.requests.claims import DEFAULT_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS
from turngate.store.requests.comments import MAX_CHARS

# The inner functions check these bounds too, for the pages; here they are also told to whoever reads the document.
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
"""Ten years: longer, and it may as well never expire."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StartRunBody(_Body):
    """Start a run. ``conversation_id``: go on with this conversation. ``model``: in place of the agent's own.

    ``unattended``: nobody attends the inbox while it runs, and this becomes of what would be asked: ``deny`` refuses it,
    ``park`` lets it wait without a clock, ``rules`` asks where a rule of the policy says so and refuses the rest.
    """

    agent: Id
    input: Text
    conversation_id: Id | None = None
    workspace: Workspace | None = None
    model: ModelName | None = None
    unattended: UnattendedAsks | None = None


class MessageBody(_Body):
    """Say something more in a run's conversation. ``while_running``: what a live run does with it; None: as its agent says."""

    input: Text
    while_running: WhileRunning | None = None


class RetryBody(_Body):
    """Go on where a run ended. ``model``: in place of the run's own."""

    model: ModelName | None = None


Instructions = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_INSTRUCTIONS_CHARS,
        description="In place of the agent's. More than white space, without U+0000.",
    ),
]
Tools = Annotated[list[Id], Field(max_length=MAX_TOOLS, description="Names: the agent has these of its tools only.")]
PolicySource = Annotated[
    str,
    Field(
        max_length=MAX_SOURCE_CHARS,
        description="TOML: `[[rule]]` tables, in place of the app's rules, the stored ones and every grant.",
    ),
]


class ForkBody(_Body):
    """Go on from a closed step of a run, elsewhere. ``step``: None is its newest; what is left out is as in that run.

    ``policy`` takes the scope `admin`. ``plain``: of what that run has of its own (instructions, tools, policy) nothing is
    taken over. ``summarise``: a fresh conversation that begins with a summary, written by the fork's model, of the past that
    it would share.
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


class ReplayBody(_Body):
    """Do a run over from its record, with no effect. ``dry``: has to be said, and is ``true``: there is no other replay.

    ``step``: the closed step to begin behind; left out: its beginning. What is left out besides is as in that run.
    """

    dry: Literal[True]
    step: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None
    agent: Id | None = None
    model: ModelName | None = None
    instructions: Instructions | None = None
    tools: Tools | None = None
    policy: PolicySource | None = None
    plain: bool = False


class InterruptBody(_Body):
    """Stop a run."""

    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""


class ModelBody(_Body):
    """Let another model go on with a live run."""

    model: ModelName


class DecisionBody(_Body):
    """Decide a request. ``args``: any JSON value, kept exactly as it was sent; ``null`` is the same as leaving it out."""

    decision: Verb
    digest: Annotated[str, Field(description="The request's `digest`: of the call as it was shown.")]
    args: JsonValue = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    outcome: Outcome | None = None
    grant: WantedGrant | None = None


class NewTokenBody(_Body):
    """Make an API token. ``user``: oneself, to act under one's own name; left out, it acts under ``name``."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    scopes: Annotated[list[Scope], Field(min_length=1)]
    user: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    expires_in_seconds: Annotated[int, Field(ge=60, le=MAX_TOKEN_SECONDS)] | None = None


class ClaimBody(_Body):
    """Take a request on for a while. ``take_over``: also when somebody else's claim stands."""

    seconds: Annotated[int, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)] = DEFAULT_SECONDS
    take_over: bool = False


class CommentBody(_Body):
    """Say something about a request to other people; no model reads it."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)]


class SavedViewBody(_Body):
    """A filter of the inbox under a name."""

    query: Annotated[
        str,
        Field(max_length=MAX_QUERY_CHARS, description="As in the inbox's URL, such as `status=pending&agent=support`."),
    ]


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
        "summary": "Say what became of a call that may or may not have happened",
        "value": {"decision": "respond", "digest": _DIGEST, "outcome": "did_not_happen"},
    },
}
"""For the OpenAPI document: one body for each kind of answer."""
