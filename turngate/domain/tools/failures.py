"""How a call goes wrong in a tool's own words: declared failures, whether anything happened, arguments that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, dataclass_transform, get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model
from pydantic_core import PydanticSerializationError

MAX_REASON_CHARS = 500

InputProblem = Literal["malformed_json", "wrong_shape"]
"""Text that is no JSON object at all, or one that does not fit the parameters: the model corrects them differently."""


class InvalidToolInput(Exception):  # noqa: N818 - it becomes the failure kind input_validation_error, never an error page
    """The model's arguments do not fit; the text is what the model reads."""

    def __init__(self, text: str, problem: InputProblem = "wrong_shape") -> None:
        super().__init__(text[:MAX_REASON_CHARS])
        self.problem: InputProblem = problem


class NothingHappened(Exception):  # noqa: N818 - as the failures below
    """Raise it from a handler if the call changed nothing and never will: a connection was refused before anything was sent.

    The text is for the model, which may try again. Of a ``once`` call any other exception means that its outcome is unknown.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutcomeUnknown(Exception):  # noqa: N818 - as the failures below
    """Raise it from a handler that can't know whether the call took effect: the other side never answered.

    The text is for the person who is asked what happened, and for the model. ``ctx.partial`` keeps output for both.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass_transform(kw_only_default=True)
class ToolFailure(Exception):  # noqa: N818 - tool authors name failures after what happened
    """Base of a tool's declared failures: annotate fields, raise it with keywords, and the model reads them.

    ``class RefundDeclined(ToolFailure): reason: str`` gives the failure kind ``refund_declined``; set the class
    variable ``kind`` for another name.
    """

    kind: ClassVar[str] = "tool_failure"
    _model: ClassVar[type[BaseModel]]

    def __init_subclass__(cls) -> None:
        """Build the pydantic model of the annotated fields, so that a wrong field fails where it is raised."""
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        own = {
            name: (annotation, getattr(cls, name, ...))
            for name, annotation in get_type_hints(cls, include_extras=True).items()
            if not name.startswith("_") and name != "kind"
        }
        cls._model = create_model(
            cls.__name__, __config__=ConfigDict(extra="forbid", ser_json_inf_nan="constants"), **own
        )  # type: ignore[call-overload]

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, JsonValue] = _encoded(self._model, fields)
        super().__init__(json.dumps(self.fields, ensure_ascii=False))

    @classmethod
    def json_schema(cls) -> dict[str, JsonValue]:
        """Return the JSON Schema of the failure's fields, as the model reads them."""
        return cls._model.model_json_schema(mode="serialization")


def _encoded(model: type[BaseModel], fields: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the JSON of a failure's fields. Raises ValidationError for fields that do not fit.

    As with a tool's success, values that have the declared types are encoded as they are: validating them would decode
    a second time, and a type that parses text would choke on its own value (I7).
    """
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    if required <= fields.keys() <= model.model_fields.keys():
        raised = model.model_construct(**fields)
        for name in (name for name, value in fields.items() if value is None):  # which encodes in place of anything
            model.__pydantic_validator__.validate_assignment(model.model_construct(), name, None)
        with suppress(PydanticSerializationError):
            return raised.model_dump(mode="json", warnings="error")
    return model(**fields).model_dump(mode="json")


def describe_validation(error: ValidationError) -> str:
    """Return pydantic's complaints as ``a.b: message; c: message``, clipped to 500 characters."""
    issues = error.errors(include_url=False, include_context=False, include_input=False)
    return describe_issues([(issue["loc"], issue["msg"]) for issue in issues])


def describe_issues(issues: Sequence[tuple[Sequence[int | str], str]]) -> str:
    """Return ``(path, message)`` complaints as ``a.b: message; c: message``, clipped to 500 characters."""
    lines = [f"{'.'.join(str(step) for step in path) or 'arguments'}: {message}" for path, message in issues]
    return "; ".join(lines)[:MAX_REASON_CHARS]
