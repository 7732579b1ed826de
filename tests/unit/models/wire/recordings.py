"""Serves this folder's recorded responses from a loopback server, one per request, and creates models that ask it.

``.json``: one body. ``.sse``: server-sent events. ``.events``: one ``[type, payload]`` a line, in AWS's binary framing
(https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html). The server records the bytes that it receives.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.servers.fake_provider import FakeProvider

from turngate.models.registry import Models, ModelSettings

FOLDER = Path(__file__).parent
CONTENT_TYPES = {
    ".json": "application/json",
    ".sse": "text/event-stream; charset=utf-8",
    ".events": "application/vnd.amazon.eventstream",
}
ANTHROPIC = "anthropic:claude-sonnet-4-6"
GOOGLE = "google:gemini-3-pro-preview"
MISTRAL = "mistral:magistral-medium-latest"
GROQ = "groq:openai/gpt-oss-120b"
BEDROCK = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
RESPONSES = "openai-responses:gpt-5"
"""One of the many that pydantic-ai knows beside them; its reasoning is encrypted."""
WITHOUT_SCHEMAS = "groq:llama-3.3-70b-versatile"
"""A model without structured output of its own."""
SPECS = (ANTHROPIC, GOOGLE, MISTRAL, GROQ, BEDROCK)
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789",
    "GOOGLE_API_KEY": "AIza0123456789",
    "MISTRAL_API_KEY": "mistral-0123456789",
    "OPENAI_API_KEY": "sk-0123456789",
    "GROQ_API_KEY": "gsk_0123456789",
    "AWS_ACCESS_KEY_ID": "AKIA0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws-0123456789",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def content_of(name: str) -> bytes:
    """Return the recorded response as it goes over the wire."""
    content = (FOLDER / name).read_bytes()
    if not name.endswith(".events"):
        return content
    return b"".join(_framed(*json.loads(line)) for line in content.splitlines())


def recorded(name: str) -> Any:
    """Return a recorded body."""
    return json.loads((FOLDER / name).read_bytes())


def answer(server: FakeProvider, *names: str, status: int = 200, cut: int | None = None) -> None:
    """Queue recorded responses. ``cut``: how many bytes are missing at the end of the last one."""
    for name in names:
        content = content_of(name)
        server.answer(
            content[: None if cut is None else -cut],
            status=status,
            headers={"content-type": CONTENT_TYPES[Path(name).suffix]},
        )


def models_at(server: FakeProvider, *specs: str, timeout: float = 5.0) -> Models:
    """Return models of these specs, all on this server, without changing the environment."""
    root = server.base_url.removesuffix("/v1")
    models = Models(ModelSettings(openai_base_url=server.base_url, timeout_seconds=timeout))
    with pytest.MonkeyPatch.context() as patch:
        for spec in (*SPECS, RESPONSES):
            patch.setenv(f"TURNGATE_{spec.partition(':')[0].upper().replace('-', '_')}_BASE_URL", root)
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
        for spec in specs:
            models.resolve(spec)
    return models


def _framed(event: str, payload: Any) -> bytes:
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((":event-type", event), (":content-type", "application/json"), (":message-type", "event"))
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack(">I", zlib.crc32(message))
