"""Final answers that must fit a schema: the instructions for the model, and the check of its answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from turngate.domain.conversation.messages import ModelResponse

ANSWER_TOOL: Final = "turngate_answer"
"""The call by which a model gives a structured answer when it has no other way to; never a tool of an agent's."""
MAX_PROBLEMS: Final = 5
OF_AUTHORS: Final = frozenset({"value_error", "assertion_error"})
"""Errors whose words are the author's own, and may quote the answer."""


def output_schema(output: type[BaseModel] | None) -> dict[str, Any] | None:
    """Return the JSON Schema of what the final answer has to be; None for free text."""
    return None if output is None else _schema(output)


def checked_output(response: ModelResponse, output: type[BaseModel] | None) -> ModelResponse:
    """Return the response, ``malformed`` if it is a final answer and not such an object; any other one as it is (I9)."""
    if output is None or not response.is_final:
        return response
    try:
        output.model_validate_json(response.message.text)
    except ValidationError as error:
        return response.model_copy(
            update={"malformed": f"the final answer does not fit its schema: {_problem_of(error, output)}"}
        )
    return response


@cache
def _schema(output: type[BaseModel]) -> dict[str, Any]:
    return output.model_json_schema()


def _problem_of(error: ValidationError, output: type[BaseModel]) -> str:
    """Return what is wrong without a word of the answer: it becomes part of why a run failed (I8)."""
    known = set(_properties(_schema(output)))
    problems = []
    for issue in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_PROBLEMS]:
        place = ".".join(str(step) if isinstance(step, int) or step in known else "…" for step in issue["loc"])
        what = "it is not accepted" if issue["type"] in OF_AUTHORS else issue["msg"]
        problems.append(f"{place}: {what}" if place else what)
    return "; ".join(problems)


def _properties(schema: Any) -> Iterator[str]:
    """Yield the names of all properties a schema knows, however deep."""
    if isinstance(schema, list):
        for each in schema:
            yield from _properties(each)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                yield from value
            yield from _properties(value)
