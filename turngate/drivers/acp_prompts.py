"""A prompt from an editor as the one text that a run begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acp import RequestError
from acp.schema import EmbeddedResourceContentBlock, ResourceContentBlock, TextContentBlock, TextResourceContents


def prompt_text(blocks: Sequence[Any]) -> str:
    """Return the text of a prompt: what was typed, links by their address, and files that came with it, each in a fence.

    Raises RequestError for pictures, sounds and other bytes, which :func:`initialize` did not say we take.
    """
    return "\n".join(_text(block) for block in blocks)


def _text(block: Any) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f"{block.name} ({block.uri})"
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as file):
            return f'<file uri="{file.uri}">\n{file.text}\n</file>'
        case _:
            raise RequestError.invalid_params({"details": f"a prompt of type {block.type!r} is not taken: send text"})
