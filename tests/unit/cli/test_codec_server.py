"""The codec server: Temporal's pages and command line read what processes of the store have encrypted; others get nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from support.stores.encryption import encrypted
from temporalio.converter import PayloadCodec

from turngate.cli.commands.serve.codec_server import Door, _origin, create_codec_app
from turngate.domain.errors import ConfigurationError
from turngate.runtime.temporal_client import codec_of, data_converter
from turngate.store.access import tokens
from turngate.store.database import Database

PAGES = "http://127.0.0.1:8233"
PLAIN = {
    "metadata": {"encoding": base64.b64encode(b"json/plain").decode()},
    "data": base64.b64encode(b'"Ximena"').decode(),
}


@pytest.fixture
async def codec(sqlite: Database) -> PayloadCodec:
    await encrypted(sqlite)
    codec = codec_of(sqlite)
    assert codec is not None
    return codec


@pytest.fixture
async def local(codec: PayloadCodec) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_codec_app(codec, Door(origin=PAGES, database=None)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        yield client


async def test_temporals_pages_read_what_a_worker_wrote_and_write_what_it_reads(
    local: httpx.AsyncClient, codec: PayloadCodec
) -> None:
    """The round trip in Temporal's own JSON, with the pages' headers; a payload from before encryption stays as it is."""
    headers = {"origin": PAGES, "x-namespace": "default"}
    sealed = (await local.post("/encode", json={"payloads": [PLAIN]}, headers=headers)).json()["payloads"]
    assert "Ximena" not in base64.b64decode(sealed[0]["data"]).decode(errors="replace")
    answer = await local.post("/decode", json={"payloads": [*sealed, PLAIN]}, headers=headers)
    assert answer.json() == {"payloads": [PLAIN, PLAIN]}
    assert answer.headers["access-control-allow-origin"] == PAGES
    assert answer.headers["cache-control"] == "no-store"
    preflight = await local.options("/decode", headers={**headers, "access-control-request-method": "POST"})
    assert (preflight.status_code, preflight.headers["access-control-allow-methods"]) == (204, "POST")
    assert (await local.post("/decode", json={"payloads": sealed})).json() == {"payloads": [PLAIN]}  # a program's


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"{PAGES}.evil.example"}, 403),
        ({"host": "evil.example:8322"}, 421),
        ({"host": ""}, 421),
        ({"content-type": "text/plain"}, 415),
    ],
)
async def test_another_page_gets_nothing(local: httpx.AsyncClient, headers: dict[str, str], status: int) -> None:
    """A page of another origin, one that names this machine (DNS rebinding), and a form that needs no preflight."""
    body = json.dumps({"payloads": [PLAIN]})
    for method in ("POST", "OPTIONS"):
        if method == "OPTIONS" and status == 415:
            continue
        answer = await local.request(
            method, "/decode", content=body, headers={"content-type": "application/json", **headers}
        )
        assert answer.status_code == status
        assert "Ximena" not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b'{"payloads":' + b"[" * 100_000, 400),
        (b'{"payloads":[{"data":5}]}', 400),
        (b"\xff\xfe", 400),
        (b'{"payloads":[{"metadata":{"encoding":"YmluYXJ5L2VuY3J5cHRlZA=="},"data":"AAAA"}]}', 400),
        (b" " * (8 * 1024 * 1024 + 1), 413),
        (b'{"payloads":[' + b"{}," * 20_000 + b"{}]}", 413),
    ],
)
async def test_hostile_input_is_refused_in_words(local: httpx.AsyncClient, body: bytes, status: int) -> None:
    """What is no JSON, nested, too long, of the wrong type, or encrypted by no one."""
    answer = await local.post("/decode", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/plain")


async def test_beyond_loopback_it_wants_an_admins_token(sqlite: Database, codec: PayloadCodec) -> None:
    """No token, an unknown one, one of an operator's role and an agent's get nothing, whatever name they used."""
    secrets = {}
    async with sqlite.write() as conn:
        for name, scope in (("admin", "admin"), ("reader", "requests:read"), ("agent", "runs:write")):
            secrets[name] = await tokens.issue(conn, tokens.NewToken(name=name, scopes=[scope]))
    transport = httpx.ASGITransport(create_codec_app(codec, Door(origin=None, database=sqlite)))
    [sealed] = await data_converter(codec).encode(["Ximena"])
    body = {"payloads": [{"metadata": {k: base64.b64encode(v).decode() for k, v in sealed.metadata.items()}}]}
    body["payloads"][0]["data"] = base64.b64encode(sealed.data).decode()  # type: ignore[assignment]
    async with httpx.AsyncClient(transport=transport, base_url="http://codec.example:8322") as client:
        for authorization in (
            "",
            "Bearer x",
            f"Bearer {secrets['reader']}",
            f"Bearer {secrets['agent']}",
            "Basic eDp5",
        ):
            refused = await client.post("/decode", json=body, headers={"authorization": authorization})
            assert refused.status_code == 401
        allowed = await client.post("/decode", json=body, headers={"authorization": f"Bearer {secrets['admin']}"})
        assert base64.b64decode(allowed.json()["payloads"][0]["data"]) == b'"Ximena"'
        assert "access-control-allow-origin" not in allowed.headers


def test_the_origin_of_the_pages_is_taken_from_their_address() -> None:
    """A path doesn't matter; what is no address is refused."""
    assert _origin("http://127.0.0.1:8233/namespaces/default") == PAGES
    assert _origin(None) is None
    for wrong in ("127.0.0.1:8233", "*", "file:///tmp", "null"):
        with pytest.raises(ConfigurationError, match="--origin"):
            _origin(wrong)
