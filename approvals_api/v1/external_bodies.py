"""What the programs send that run calls themselves."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from approvals_api.requests.answer_check import MAX_ARGS_CHARS
from approvals_api.v1.parameters import STORABLE
from turngate.domain.tools.external import SOURCE, ExternalTool
from turngate.domain.tools.results import TOOL_RESULT, Failure, Ok

MAX_WAIT_SECONDS: Final = 60
MAX_CONTEXT_CHARS: Final = 20_000

Attempt = Annotated[
    str,
    Field(
        pattern=r"^[!-~]{8,64}$",
        description="An id of your choice for this try to run the call: 8 to 64 printable ASCII characters. The same asks again.",
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExternalCallBody(_Body):
    """A call that its sender would run. ``input``: the arguments, as the very JSON text that will run.

    ``context``: what whoever decides should know besides, such as the model's own words. ``turn``: an id of yours for the stretch
    of a conversation in which the call was made, such as one message of a user and what follows from it.
    """

    source: Annotated[str, Field(pattern=rf"^{SOURCE.pattern}$", description="Names your program in policy and inbox.")]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]
    tool: ExternalTool
    input: Annotated[str, Field(max_length=MAX_ARGS_CHARS, pattern=STORABLE)]
    context: Annotated[str, Field(max_length=MAX_CONTEXT_CHARS, pattern=STORABLE)] = ""
    turn: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=255,
            pattern=STORABLE,
            description="What a person rejected in a turn is closed when it is sent again in it, and nobody is asked. Without "
            "one: for an hour, whatever conversation of the source it came from.",
        ),
    ] = None


class StartBody(_Body):
    """Start a call."""

    attempt: Attempt


class ReportedOk(_Body):
    """The call ran to its end."""

    tag: Literal["ok"]
    value: dict[str, JsonValue]


class ReportedFailure(_Body):
    """The call ran and failed, or could not run after all."""

    tag: Literal["failure"]
    kind: Annotated[str, Field(min_length=1, max_length=64, pattern=STORABLE)]
    reason: Annotated[str, Field(max_length=MAX_CONTEXT_CHARS, pattern=STORABLE)] = ""
    fields: dict[str, JsonValue] = {}


class ReportBody(_Body):
    """Report a call's result. A failure's ``kind`` is your own word, or ``tool_failure``, ``execution_error``, ``timeout``.

    ``result`` null: you do not know whether it happened. Of a call that runs once a person is asked.
    """

    attempt: Attempt
    result: Annotated[ReportedOk | ReportedFailure, Field(discriminator="tag")] | None

    @property
    def stored(self) -> Ok | Failure | None:
        """The result as the engine keeps it."""
        return None if self.result is None else TOOL_RESULT.validate_python(self.result.model_dump())
