"""Turn our tools, output schema and options into pydantic-ai's request parameters and settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.native_tools import AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from turngate.domain.agents.structured_output import ANSWER_TOOL
from turngate.domain.conversation.messages import Message
from turngate.domain.errors import ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models.openai.strict import NotStrictError, strict_schema, warn_not_strict
from turngate.models.port import ModelRequest
from turngate.models.pydantic_ai.opaque import own
from turngate.models.pydantic_ai.request import cache_mark

ANSWER_DESCRIPTION: Final = "Give the final answer. Call this once, when nothing else is left to do."
NATIVE_TOOL: Final[TypeAdapter[Any]] = TypeAdapter(AbstractNativeTool)
SYSTEM_CACHE: Final = {"anthropic": "anthropic_cache_instructions", "bedrock": "bedrock_cache_instructions"}


def request_parameters(request: ModelRequest, model: Model[Any], provider: str) -> ModelRequestParameters:
    """Return the tools, in their order, and the form of the answer.

    Raises:
        ModelError: ``configuration``, for a provider tool that does not say how this provider runs it.
    """
    functions = [_tool(manifest, model, provider) for manifest in request.tools if manifest.kind != "provider"]
    native = [_native(manifest, provider) for manifest in request.tools if manifest.kind == "provider"]
    if request.output is None:
        return ModelRequestParameters(function_tools=functions, native_tools=native)
    schema = dict(request.output)
    if model.profile.get("supports_json_schema_output", False):
        answer = OutputObjectDefinition(json_schema=schema, name="answer")
        return ModelRequestParameters(
            function_tools=functions, native_tools=native, output_mode="native", output_object=answer
        )
    call = ToolDefinition(
        name=ANSWER_TOOL, description=ANSWER_DESCRIPTION, parameters_json_schema=schema, kind="output", strict=False
    )
    # A model that may answer with text does so; so it must call a tool, this one or another.
    return ModelRequestParameters(
        function_tools=functions, native_tools=native, output_mode="tool", output_tools=[call], allow_text_output=False
    )


def settings(request: ModelRequest, model: Model[Any], provider: str, *, timeout: float) -> ModelSettings:
    """Return how to answer, with the client's own retries off: Temporal retries.

    Settings that the model does not know are left out. ``timeout``: seconds, for each wait of the client.
    """
    options = request.options
    values: dict[str, Any] = {"max_retries": 0, "timeout": timeout}
    if options.max_output_tokens is not None:
        values["max_tokens"] = options.max_output_tokens
    if options.temperature is not None:
        values["temperature"] = options.temperature
    if options.top_p is not None:
        values["top_p"] = options.top_p
    if request.tool_choice is not None:
        values["tool_choice"] = request.tool_choice if options.chosen_tool is None else [request.tool_choice]
    if options.reasoning_effort is not None and model.profile.get("supports_thinking", False):
        values["thinking"] = options.reasoning_effort
    if (ttl := _system_mark(request.messages, provider)) is not None and provider in SYSTEM_CACHE:
        values[SYSTEM_CACHE[provider]] = ttl
    known = {key: value for key, value in values.items() if key not in model.unsupported_settings}
    return cast("ModelSettings", known)


def _system_mark(messages: Sequence[Message], provider: str) -> Any:
    if not messages or messages[0].role != "system":
        return None
    marks = [cache_mark(own(provider, part.provider_options)) for part in messages[0].parts]
    return next((mark for mark in marks if mark is not None), None)


STRICT: Final = ("openai", "azure", "anthropic", "groq", "xai", "grok")
"""How the names of the providers begin that hold their models to a strict schema, unless a model's profile says otherwise."""


def _is_strict(manifest: ToolManifest, model: Model[Any], provider: str) -> bool:
    if not manifest.strict:
        return False
    profiled = [bool(value) for key, value in model.profile.items() if key.endswith("supports_strict_tool_definition")]
    if not (any(profiled) if profiled else provider.startswith(STRICT)):
        warn_not_strict(manifest.name, f"{provider} can't hold this model to a schema")
        return False
    try:
        strict_schema(manifest.parameters)
    except NotStrictError as why:
        warn_not_strict(manifest.name, str(why))
        return False
    return True


def _tool(manifest: ToolManifest, model: Model[Any], provider: str) -> ToolDefinition:
    parameters: dict[str, Any] = dict(manifest.parameters)
    if parameters.get("type", "object") == "object" and "$ref" not in parameters:
        parameters = {"type": "object", "properties": {}, **parameters}
    return ToolDefinition(
        name=manifest.name,
        description=manifest.description,
        parameters_json_schema=parameters,
        strict=_is_strict(manifest, model, provider),
    )


def _native(manifest: ToolManifest, provider: str) -> Any:
    """Return the provider's own tool from its author's entry, which is in pydantic-ai's words: ``{"kind": "web_search"}``."""
    entry = manifest.provider.get(provider)
    if entry is None:
        named = ", ".join(manifest.provider) or "none"
        raise _wrong(
            f"the provider tool {manifest.name!r} does not say how {provider!r} runs it (it names: {named}); give it an "
            f"entry for {provider!r}, or the agent another model"
        )
    try:
        return NATIVE_TOOL.validate_python(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _wrong(
            f"the entry for {provider!r} of the provider tool {manifest.name!r} is none of pydantic-ai's native tools: "
            f"{first['msg']}; it has to be such as {{'kind': 'web_search'}}"
        ) from None


def _wrong(what: str) -> ModelError:
    return ModelError(what, error_class="configuration", retryable=False)
