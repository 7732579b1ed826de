"""From Turngate's messages to the body of a ``POST /chat/completions`` request. Pure.

Owns the outgoing half of the mapping; :mod:`turngate.models.openai.response` is the incoming one. The form is that of
https://platform.openai.com/docs/api-reference/chat/create, kept to what OpenRouter, Ollama, vLLM and llama.cpp take
too. The same messages always give the same bytes, because providers cache by prefix.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from turngate.domain.agents.model_profiles import ModelOptions
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

# The order of messages that strict servers insist on. Pure.
#
# The chat templates of many open models raise unless user and assistant take turns, which vLLM, llama.cpp and others hand on
# as a 400 (vllm #6862): two messages of one side become one. Mistral's models also refuse a user's message directly behind a
# result ("Unexpected role 'user' after role 'tool'"): there the model is let say a word. The conversation keeps such an order
# for good, so either refusal would end every later request, too. What is stored stays as it is.


OF_MISTRAL: Final = re.compile(r"(?:m|min|mag)istral|(?:dev|code|math|lean)stral|(?:mi|pi|vo)xtral", re.IGNORECASE)
"""In the name of a model: one of Mistral's, whoever serves it (``mistralai/Devstral-Small``), under its own rules."""
BETWEEN_RESULT_AND_USER: Final = "OK"
"""What Mistral's models are said to have answered; their API refuses an assistant's message that says nothing."""
PLAIN: Final = frozenset({"role", "content"})
"""The keys of a message that holds nothing for its provider alone; two of which one does stay two."""


def in_turns(sent: Iterable[dict[str, Any]], *, model: str) -> list[dict[str, Any]]:
    """Return the messages of a request in an order that every server takes; nothing said is lost."""
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
    """Return two contents as one: text as paragraphs; blocks where one of them has blocks."""
    if not content or not more:
        return content or more
    if isinstance(content, str) and isinstance(more, str):
        return f"{content}\n\n{more}"
    return [*_blocks(content), *_blocks(more)]


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


PROVIDER: Final = "openai_compatible"
"""The key of ``provider_options`` that this adapter writes and reads; no other provider's is sent."""

INVALID_ARGUMENTS: Final = "invalid_json_arguments"
SPEC: Final = "openai"
"""This provider in a model's spec, under which a provider tool says how it is told to run it."""
MAX_NAME_CHARS: Final = 64
NAME_IS_FREE_OF: Final = re.compile(r"[^a-zA-Z0-9_-]")

CallIds = Callable[[str], str]
"""From the id of a call as it is stored to the one that this request gives it."""


def request_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolManifest],
    *,
    output: Mapping[str, Any] | None = None,
    options: ModelOptions | None = None,
    of_openai: bool = False,
) -> dict[str, Any]:
    """Return the request's body; ``messages`` must be reconciled (I1), and their order is kept. Neighbours of one side are one.

    ``output``: JSON Schema of the object that the final answer has to be. ``of_openai``: the server is OpenAI's own,
    which has another name for the bound of the output, and a bound for call ids.

    Raises:
        ModelError: ``invalid_request``, for a file part without content and url; ``configuration``, for a provider tool
            that does not say how this provider runs it.
    """
    call_ids = _call_ids(model, of_openai=of_openai)
    sent = in_turns((each for message in messages for each in _sent(message, call_ids)), model=model)
    body: dict[str, Any] = {"model": model, "messages": sent}
    if tools:
        body["tools"] = [_tool(manifest) for manifest in tools]
    if output is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": _answer_schema(output)}
    if options is not None:
        # OpenAI's reasoning models refuse `max_tokens`; Ollama and llama.cpp know no other name.
        bound = "max_completion_tokens" if of_openai else "max_tokens"
        asked = {
            bound: options.max_output_tokens,
            "temperature": options.temperature,
            "reasoning_effort": options.reasoning_effort,
        }
        body |= {name: value for name, value in asked.items() if value is not None}
    return body


def _answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry for a schema. Not ``strict``, which forbids optional properties: the engine checks the answer itself."""
    name = NAME_IS_FREE_OF.sub("_", str(schema.get("title") or ""))[:MAX_NAME_CHARS] or "answer"
    return {"name": name, "schema": dict(schema)}


def _call_ids(model: str, *, of_openai: bool) -> CallIds:
    """Return how this server wants the ids of calls, which another may have written, or the engine minted.

    Elsewhere they stay what they are: a gateway may keep what its provider needs in an id of thousands of characters.
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
    """Return what this provider asked to be given back: reasoning, signatures, whatever else it sent."""
    kept = options.get(PROVIDER)
    return kept if isinstance(kept, dict) else {}


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
    # A message that says nothing is left out: `content: null` without calls is refused by OpenAI, and an empty text by
    # Anthropic's models behind OpenRouter. It is the model's own empty answer, so the next request is simply the same.
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
    """Return the name in the only form that OpenAI takes back: it answers 400 to its own model's ``a.b``.

    Declared tools have such names already; this is for those that the model made up, whose call is closed as
    ``unknown_tool`` and would otherwise end the run at the next request (I9).
    """
    return NAME_IS_FREE_OF.sub("_", name)[:MAX_NAME_CHARS] or "_"


def accepted_arguments(raw_input: str) -> str:
    """Return a JSON object as text: the model's own bytes when they are one, "" as ``{}``, anything else wrapped.

    vLLM, SGLang, llama.cpp and Ollama parse the arguments of *past* calls and refuse the whole request when one is not
    a JSON object (vllm #48922, sglang #28035, llama.cpp #22072, ollama #15647). The call stands in the history for
    good, so one truncated call would end its run (I9). The store keeps what the model sent.
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
    """Return plain text, or blocks where a file or a text's own options (such as a cache mark) have to go with it."""
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
        function["strict"] = True
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
