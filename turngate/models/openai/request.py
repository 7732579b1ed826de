"""Turn Turngate's messages into the body of a ``POST /chat/completions`` request. Pure.

Owns the outgoing half of the mapping; :mod:`turngate.models.openai.response` is the incoming one. The form is that of
https://platform.openai.com/docs/api-reference/chat/create, kept to what OpenRouter, Ollama, vLLM and llama.cpp take
too. The same messages always give the same bytes, because providers cache by prefix.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    ProviderOptions,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import wire_text
from turngate.domain.tools.tool import ToolManifest
from turngate.models.accepted_ids import MISTRAL, OPENAI, AcceptedIds
from turngate.models.openai.strict import NotStrictError, strict_schema, warn_not_strict
from turngate.models.port import ModelRequest

# The order of messages that strict servers require. Pure.
#
# The chat templates of many open models raise unless user and assistant take turns, and vLLM, llama.cpp and others return
# that as a 400 (vllm #6862): so two messages of one side become one. Mistral's models also refuse a user's message directly
# after a result ("Unexpected role 'user' after role 'tool'"): so the model says a word in between. The order of a
# conversation never changes, so either refusal would also end every later request. The stored messages do not change.


OF_MISTRAL: Final = re.compile(r"(?:m|min|mag)istral|(?:dev|code|math|lean)stral|(?:mi|pi|vo)xtral", re.IGNORECASE)
"""In a model's name: it is one of Mistral's, on any server (``mistralai/Devstral-Small``), with Mistral's rules."""
BETWEEN_RESULT_AND_USER: Final = "OK"
"""The answer that is put between; Mistral's API refuses an empty assistant message."""
PLAIN: Final = frozenset({"role", "content"})
"""The keys of a message without a provider's own data; only such messages are joined."""


def in_turns(sent: Iterable[dict[str, Any]], *, model: str) -> list[dict[str, Any]]:
    """Return the messages of a request in an order that every server accepts, without losing content."""
    bridges = OF_MISTRAL.search(model) is not None
    turns: list[dict[str, Any]] = []
    for message in sent:
        last = turns[-1] if turns else None
        if last is not None and _are_one(last, message):
            turns[-1] = {**message, "content": _joined(last["content"], message["content"])}
            continue
        if bridges and last is not None and (last["role"], message["role"]) == ("tool", "user"):
            turns.append({"role": "assistant", "content": BETWEEN_RESULT_AND_USER})
        turns.append(message)
    return turns


def _are_one(message: dict[str, Any], following: dict[str, Any]) -> bool:
    role = message["role"]
    if role != following["role"] or role not in {"user", "assistant"} or set(message) != PLAIN:
        return False
    return set(following) <= {*PLAIN, "tool_calls"}


def _joined(content: Any, more: Any) -> Any:
    """Return two contents as one: texts as paragraphs; blocks if one of them has blocks."""
    if not content or not more:
        return content or more
    if isinstance(content, str) and isinstance(more, str):
        return f"{content}\n\n{more}"
    return [*_blocks(content), *_blocks(more)]


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


PROVIDER: Final = "openai_compatible"
"""The key of ``provider_options`` that this adapter writes and reads; other providers' options are not sent."""

INVALID_ARGUMENTS: Final = "invalid_json_arguments"
SPEC: Final = "openai"
"""This provider's name in a model's spec, and the key of its entry in a provider tool."""
MAX_NAME_CHARS: Final = 64
NAME_IS_FREE_OF: Final = re.compile(r"[^a-zA-Z0-9_-]")

CallIds = Callable[[str], str]
"""Turns the stored id of a call into its id in this request."""


def request_body(model: str, request: ModelRequest, *, of_openai: bool = False) -> dict[str, Any]:
    """Return the request's body. Messages keep their order; neighbours of one side become one.

    ``of_openai``: the server is OpenAI's own, which has another name for the output's limit, and a limit for call ids.

    Raises:
        ModelError: ``invalid_request``, for a file part without content and url; ``configuration``, for a provider tool
            that does not say how this provider runs it.
    """
    call_ids = _call_ids(model, of_openai=of_openai)
    sent = in_turns((each for message in request.messages for each in _sent(message, call_ids)), model=model)
    body: dict[str, Any] = {"model": model, "messages": sent}
    if request.tools:
        body["tools"] = [_tool(manifest) for manifest in request.tools]
    if request.output is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": _answer_schema(request.output)}
    options = {
        # OpenAI's reasoning models refuse `max_tokens`; Ollama and llama.cpp know no other name.
        "max_completion_tokens" if of_openai else "max_tokens": request.options.max_output_tokens,
        "temperature": request.options.temperature,
        "reasoning_effort": request.options.reasoning_effort,
        "top_p": request.options.top_p,
        "tool_choice": _tool_choice(request),
    }
    return body | {name: value for name, value in options.items() if value is not None}


def _tool_choice(request: ModelRequest) -> Any:
    """Return how a tool is to be chosen: a word, or a function by its name."""
    if request.tool_choice is None or request.options.chosen_tool is None:
        return request.tool_choice
    return {"type": "function", "function": {"name": request.tool_choice}}


def _answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry for a schema. Not ``strict``, which forbids optional properties: the engine checks the answer."""
    name = NAME_IS_FREE_OF.sub("_", str(schema.get("title") or ""))[:MAX_NAME_CHARS] or "answer"
    return {"name": name, "schema": dict(schema)}


def _call_ids(model: str, *, of_openai: bool) -> CallIds:
    """Return how this server wants the ids of calls, which may come from another server or from the engine.

    For other servers they do not change: a gateway may store what its provider needs in an id of thousands of characters.
    """
    if OF_MISTRAL.search(model):
        return AcceptedIds(MISTRAL).of
    return AcceptedIds(OPENAI).of if of_openai else str


def _sent(message: Message, call_ids: CallIds) -> Iterator[dict[str, Any]]:
    match message.role:
        case "tool":
            yield from (_result(part, call_ids) for part in message.results)
        case "assistant":
            yield from _assistant(message, call_ids)
        case "user" | "system":
            yield {"role": message.role, "content": _content(message), **_opaque(message.provider_options)}


def _opaque(options: ProviderOptions) -> dict[str, Any]:
    """Return what this provider wants back: reasoning, signatures and everything else that it sent."""
    opaque = options.get(PROVIDER)
    return opaque if isinstance(opaque, dict) else {}


def _result(part: ToolResultPart, call_ids: CallIds) -> dict[str, Any]:
    content = wire_text(part.result, edited_input=part.edited_input)
    opaque = _opaque(part.provider_options)
    return {"role": "tool", "tool_call_id": call_ids(part.tool_call_id), "content": content, **opaque}


def _assistant(message: Message, call_ids: CallIds) -> Iterator[dict[str, Any]]:
    opaque = _opaque(message.provider_options)
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    text = "".join(part.text for part in texts if not _is_refusal(part))
    refusal = "".join(part.text for part in texts if _is_refusal(part))
    sent: dict[str, Any] = {"role": "assistant", "content": text if text.strip() else None}
    if refusal:
        sent["refusal"] = refusal
    if message.calls:
        sent["tool_calls"] = [_call(call, call_ids) for call in message.calls]
    # An empty message is left out: OpenAI refuses `content: null` without calls, and Anthropic's models on OpenRouter refuse
    # an empty text. It is the model's own empty answer, so the next request is simply the same.
    if sent["content"] is not None or refusal or message.calls:
        yield {**sent, **opaque}


def _is_refusal(part: TextPart) -> bool:
    return "refusal" in _opaque(part.provider_options)


def _call(call: ToolCallPart, call_ids: CallIds) -> dict[str, Any]:
    opaque = _opaque(call.provider_options)
    of_function = opaque.get("function")
    function = {"name": _accepted_name(call.tool_name), "arguments": accepted_arguments(call.input)}
    return {
        **{key: value for key, value in opaque.items() if key != "function"},
        "id": call_ids(call.tool_call_id),
        "type": "function",
        "function": {**function, **(of_function if isinstance(of_function, dict) else {})},
    }


def _accepted_name(name: str) -> str:
    """Return the name in the only form that OpenAI accepts: it answers 400 to its own model's ``a.b``.

    Declared tools have such names already. This is for tools that the model made up: their call is closed as
    ``unknown_tool``, and its name would otherwise end the run at the next request (I9).
    """
    return NAME_IS_FREE_OF.sub("_", name)[:MAX_NAME_CHARS] or "_"


def accepted_arguments(raw_input: str) -> str:
    """Return a JSON object as text: the model's own bytes if they are one, "" as ``{}``, anything else wrapped.

    vLLM, SGLang, llama.cpp and Ollama parse the arguments of *past* calls and refuse the whole request if one is not a JSON
    object (vllm #48922, sglang #28035, llama.cpp #22072, ollama #15647). The call stays in the history forever, so one
    truncated call would end its run (I9). The store keeps what the model sent.
    """
    if not raw_input.strip():
        return "{}"
    try:
        is_object = isinstance(json.loads(raw_input, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):
        is_object = False
    return raw_input if is_object else json.dumps({INVALID_ARGUMENTS: raw_input}, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON, though Python reads it")


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Return plain text, or blocks if a file or a text's own options (such as a cache mark) must be sent."""
    if not any(
        isinstance(part, FilePart) or (isinstance(part, TextPart) and part.text and _opaque(part.provider_options))
        for part in message.parts
    ):
        return message.text
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, FilePart):
            content.append(_file(part))
        elif isinstance(part, TextPart) and part.text:
            content.append({"type": "text", "text": part.text, **_opaque(part.provider_options)})
    return content


def _file(part: FilePart) -> dict[str, Any]:
    if part.content is not None:
        address = f"data:{part.media_type};base64,{part.content}"
    elif part.url is not None:
        address = part.url
    else:
        raise ModelError(
            f"a message holds {part.media_type} without content and url; give it one of both",
            error_class="invalid_request",
            retryable=False,
        )
    opaque = _opaque(part.provider_options)
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": address, **opaque}}
    name = f"attachment{mimetypes.guess_extension(part.media_type) or ''}"
    return {"type": "file", "file": {"filename": name, "file_data": address, **opaque}}


def _tool(manifest: ToolManifest) -> dict[str, Any]:
    if manifest.kind == "provider":
        return _of_provider(manifest)
    parameters: dict[str, Any] = dict(manifest.parameters)
    if parameters.get("type", "object") == "object" and "$ref" not in parameters:
        parameters = {"type": "object", "properties": {}, **parameters}
    function: dict[str, Any] = {
        "name": manifest.name,
        "description": manifest.description,
        "parameters": parameters,
    }
    if manifest.strict:
        try:
            function |= {"parameters": strict_schema(parameters), "strict": True}
        except NotStrictError as why:
            warn_not_strict(manifest.name, str(why))
    return {"type": "function", "function": function}


def _of_provider(manifest: ToolManifest) -> dict[str, Any]:
    """Return the entry for a tool that the provider runs, as its author wrote it."""
    entry = manifest.provider.get(SPEC)
    if entry is None:
        named = ", ".join(manifest.provider) or "none"
        raise ModelError(
            f"the provider tool {manifest.name!r} does not say how {SPEC!r} runs it (it names: {named}); give it an entry "
            f"for {SPEC!r}, or the agent another model",
            error_class="configuration",
            retryable=False,
        )
    return dict(entry)
