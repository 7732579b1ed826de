"""The HTTP tools against real servers on loopback: requests, responses, limits, secrets, failures, interrupts."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from support.engine.one_call import read_tool, run_tool
from support.servers.certificates import certificate_for

from turngate import Toolkit
from turngate.activities.execution.executor import Unknown
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, evaluate
from turngate.toolkits.http import http_toolkit
from turngate.toolkits.http_client.exchange import as_text

SECRET = "s3cret/Token+of=the:builder"


@dataclass
class Request:
    """A request as the server got it; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Reply = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server with a table of replies by path: raw bytes, or a function that writes anything."""

    port: int = 0
    replies: dict[str, Reply] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    def kit(self, *more_hosts: str, **options) -> Toolkit:
        return http_toolkit([self.host, *more_hosts], allow_private=True, **options)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _version = head[0].split(" ")
            self.requests.append(Request(method, path, headers, body))
            answer = self.replies.get(path, reply("nothing here", status="404 Not Found"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def reply(body: str | bytes = "", *, status: str = "200 OK", **headers: str) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    named = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + content


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()
    await server.wait_closed()


other_site = site


async def run(kit: Toolkit, name: str = "http_get", **tool_input) -> dict:
    return await read_tool(kit.find(name), **tool_input)


# --- responses


async def test_a_page_is_fetched_with_a_few_headers(site):
    """The other headers, above all cookies, are not for the model."""
    site.replies["/"] = reply("h\u00e9llo", ETag='"1"', Set_Cookie="session=1", Server="x", Link="<next>; rel=next")
    assert await run(site.kit(), url=site.url(), accept="text/plain") == {
        "url": site.url(),
        "status": 200,
        "headers": {
            "content-type": "text/plain; charset=utf-8",
            "content-length": "6",
            "etag": '"1"',
            "link": "<next>; rel=next",
        },
        "redirects": [],
        "text": "h\u00e9llo",
        "base64": None,
        "size_bytes": 6,
        "truncated": False,
    }
    sent = site.requests[0]
    assert (sent.method, sent.path, sent.body) == ("GET", "/", b"")
    assert sent.headers == {
        "host": site.host,
        "user-agent": "turngate",
        "accept": "text/plain",
        "accept-encoding": "gzip",
    }


async def test_an_error_status_is_a_result(site):
    """The model reads the server's message."""
    response = await run(site.kit(), url=site.url("/missing"))
    assert (response["status"], response["text"]) == (404, "nothing here")


async def test_head_has_headers_and_no_body(site):
    """Even if a Content-Length or an encoding announces one."""
    site.replies["/"] = reply(Content_Length="123", Content_Encoding="gzip")
    response = await run(site.kit(), url=site.url(), method="HEAD")
    assert site.requests[0].method == "HEAD"
    assert (response["headers"]["content-length"], response["text"], response["truncated"]) == ("123", "", False)


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("gr\u00fc\u00df".encode("latin-1"), "text/html; charset=ISO-8859-1", "gr\u00fc\u00df"),
        ("gr\u00fc\u00df".encode("utf-16"), "text/plain; charset=utf-16", "gr\u00fc\u00df"),
        ("gr\u00fc\u00df".encode("utf-16"), "text/plain", "gr\u00fc\u00df"),
        ("\ufeffx".encode(), "application/json", "x"),
        (b'{"a": 1}', "application/octet-stream", '{"a": 1}'),
        (b"\x89PNG\r\n\xff", "image/png", None),
        (b"a\0b", "text/plain", None),
        (b"\xff\xfe\x00", "text/plain; charset=utf-8", None),
        (b"x", "text/plain; charset=no-such-thing", None),
        (b"x", "text/plain; charset=rot13", None),
        (b"x", "text/plain; charset=unicode_escape", None),
        (b"x", "text/plain; charset=utf-7", None),
        (b"x", "text/plain; charset=\xff", "x"),
        (b"", "image/png", ""),
    ],
)
async def test_text_is_text_and_anything_else_base64(site, body, content_type, text):
    """The server's charset decides, else UTF-8; text with NUL is base64, since no store accepts it."""
    site.replies["/"] = reply(body, Content_Type=content_type)
    response = await run(site.kit(), url=site.url())
    assert response["text"] == text
    assert response["base64"] == (base64.b64encode(body).decode() if text is None else None)
    assert response["size_bytes"] == len(body)


@pytest.mark.parametrize(
    ("body", "text", "truncated"),
    [("x" * 10, "x" * 10, False), ("x" * 11, "x" * 10, True), ("\u20ac" * 4, "\u20ac" * 3, True)],
)
async def test_a_body_is_cut_at_the_limit(site, body, text, truncated):
    """At the limit nothing is missing; a character that is cut in two is left out."""
    site.replies["/"] = reply(body)
    response = await run(site.kit(max_bytes=10), url=site.url())
    assert (response["text"], response["truncated"]) == (text, truncated)


async def test_an_endless_body_is_cut_and_the_connection_closed(site):
    """The tool stops reading: the server's write fails soon after."""
    written = 0
    hung_up = asyncio.Event()

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while written < 100_000_000:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        finally:
            hung_up.set()

    site.replies["/"] = pour
    response = await run(site.kit(max_bytes=1000), url=site.url())
    await asyncio.wait_for(hung_up.wait(), 60)
    assert (response["size_bytes"], response["truncated"]) == (1000, True)
    assert written < 100_000_000


async def test_gzip_is_unpacked_member_by_member(site):
    """A body of several members is one text; padding after them is ignored."""
    site.replies["/"] = reply(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0", Content_Encoding="gzip")
    site.replies["/empty"] = reply(b"", Content_Encoding="gzip")
    site.replies["/short"] = reply(gzip.compress(b"cut off")[:-6], Content_Encoding="gzip")
    response = await run(site.kit(), url=site.url())
    assert (response["text"], response["size_bytes"], response["truncated"]) == ("one two", 7, False)
    assert (await run(site.kit(), url=site.url("/empty")))["truncated"] is False
    short = await run(site.kit(), url=site.url("/short"))
    assert (short["text"], short["truncated"]) == ("cut off", True)


async def test_a_decompression_bomb_stays_small_in_memory(site):
    """30 KB that unpack to 32 MB: the limit applies while unpacking, not after."""
    site.replies["/"] = reply(gzip.compress(b"a" * 2**25), Content_Encoding="gzip")
    kit = site.kit(max_bytes=100_000)
    tracemalloc.start()
    response = await run(kit, url=site.url())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (response["size_bytes"], response["truncated"]) == (100_000, True)
    assert peak < 5_000_000


async def test_compressed_bytes_that_unpack_to_nothing_are_bounded(site):
    """Empty blocks forever: no output, and yet the reading ends."""
    empty_block = b"\x00\x00\x00\xff\xff"
    header = zlib.compressobj(wbits=31).flush()[:10]

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + header)
        while True:
            writer.write(empty_block * 10_000)
            await writer.drain()

    site.replies["/"] = pour
    response = await run(site.kit(max_bytes=1000), url=site.url())
    assert (response["size_bytes"], response["truncated"]) == (0, True)


@pytest.mark.parametrize(
    ("encoding", "body"), [("br", b"x"), ("gzip, gzip", b"x"), ("deflate", b"x"), ("gzip", b"not gzip")]
)
async def test_an_encoding_that_was_not_accepted_is_a_declared_failure(site, encoding, body):
    """Its bytes would mean nothing to the model."""
    site.replies["/"] = reply(body, Content_Encoding=encoding)
    failed = await run(site.kit(), url=site.url())
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "bad_response", True)


def test_a_cut_never_makes_text_of_a_broken_charset():
    """A whole text must decode to its last byte; a cut one may end inside a character."""
    euro = "\u20ac".encode()
    assert as_text(b"a" + euro[:2], None, whole=True) is None
    assert as_text(b"a" + euro[:2], None, whole=False) == "a"
    assert as_text(b"a" + euro[:2] + b"a", None, whole=False) is None


# --- redirects


async def test_redirects_are_followed_and_listed(site):
    """Relative and absolute; a HEAD stays a HEAD."""
    site.replies |= {
        "/1": reply(status="301 Moved Permanently", Location="2?q=1"),
        "/2?q=1": reply(status="307 Temporary Redirect", Location=f"//{site.host}/3"),
        "/3": reply("here"),
    }
    response = await run(site.kit(), url=site.url("/1"))
    assert (response["url"], response["text"]) == (site.url("/3"), "here")
    assert response["redirects"] == [site.url("/1"), site.url("/2?q=1")]
    await run(site.kit(), url=site.url("/1"), method="HEAD")
    assert {each.method for each in site.requests[3:]} == {"HEAD"}


async def test_five_redirects_are_followed_and_six_are_not(site):
    """A loop ends in a declared failure."""
    site.replies |= {f"/{step}": reply(status="302 Found", Location=f"/{step - 1}") for step in range(1, 7)}
    site.replies["/0"] = reply("end")
    assert (await run(site.kit(), url=site.url("/5")))["text"] == "end"
    failed = await run(site.kit(), url=site.url("/6"))
    assert (failed["kind"], failed["cause"]) == ("request_failed", "too_many_redirects")
    assert len(site.requests) == 6 + 6


async def test_a_redirect_without_a_location_and_a_304_are_results(site):
    """There is no address to follow."""
    site.replies |= {"/1": reply("x", status="302 Found"), "/2": reply(status="304 Not Modified", Location="/1")}
    assert (await run(site.kit(), url=site.url("/1")))["status"] == 302
    assert (await run(site.kit(), url=site.url("/2")))["status"] == 304


# --- configured headers


def secret_kit(site: Site, *more_hosts: str, **options) -> Toolkit:
    headers = {site.host: {"Authorization": f"Bearer {SECRET}", "X-Version": "7", "User-Agent": "our-agent"}}
    return site.kit(*more_hosts, headers=headers, **options)


async def test_configured_headers_go_to_their_host_only(site, other_site):
    """Not to another allowed host, even if the model asks for it."""
    site.replies["/"] = other_site.replies["/"] = reply("version 7 of our-agent")
    kit = secret_kit(site, other_site.host)
    assert (await run(kit, url=site.url()))["text"] == "version 7 of our-agent"
    await run(kit, url=other_site.url())
    assert site.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert site.requests[0].headers["user-agent"] == "our-agent"
    assert "authorization" not in other_site.requests[0].headers
    assert other_site.requests[0].headers["user-agent"] == "turngate"


async def test_configured_headers_are_dropped_when_a_redirect_leaves_the_origin(site, other_site):
    """They stay dropped on the way back: the other host chose that URL."""
    site.replies["/same"] = reply(status="302 Found", Location="/away")
    site.replies["/away"] = reply(status="302 Found", Location=other_site.url("/back"))
    other_site.replies["/back"] = reply(status="302 Found", Location=site.url("/end"))
    site.replies["/end"] = reply("end")
    assert (await run(secret_kit(site, other_site.host), url=site.url("/same")))["text"] == "end"
    assert [(each.path, "authorization" in each.headers) for each in site.requests] == [
        ("/same", True),
        ("/away", True),
        ("/end", False),
    ]
    assert "authorization" not in other_site.requests[0].headers


async def test_configured_headers_are_not_sent_in_the_clear(site):
    """Over plain HTTP no server gets them, unless the toolkit is for an intranet."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14"]

    kit = http_toolkit(["api.example"], headers={"api.example": {"X-Key": SECRET}}, resolve=resolve, methods=["POST"])
    tool = kit.find("http_request")
    previews = {
        scheme: tool.preview(tool.decode(json.dumps({"url": f"{scheme}://api.example/", "method": "POST"})), None).text
        for scheme in ("http", "https")
    }
    assert "X-Key" not in previews["http"]
    assert "X-Key: (configured, not shown)" in previews["https"]


@pytest.mark.parametrize(
    "echo",
    [
        f"you sent Bearer {SECRET}".encode(),
        json.dumps({"Authorization": SECRET}).encode(),
        json.dumps({"Authorization": SECRET}).replace("/", "\\/").encode(),
        b"?auth=s3cret%2FToken%2Bof%3Dthe%3Abuilder",
        SECRET.encode("utf-16-le"),
        b"\x00\xff" + SECRET.encode(),
    ],
)
async def test_a_server_that_echoes_a_secret_does_not_show_it(site, echo):
    """Whole or escaped, in text or in base64."""
    site.replies["/"] = reply(echo, Content_Type="application/octet-stream")
    response = await run(secret_kit(site), url=site.url())
    content = base64.b64decode(response["base64"]) if response["text"] is None else response["text"].encode()
    assert b"s3cret" not in content.replace(b"\0", b"")
    assert b"***" in content.replace(b"\0", b"")
    assert len(content) == len(echo)


@pytest.mark.parametrize("max_bytes", range(1, 60, 3))
async def test_a_cut_does_not_uncover_half_a_secret(site, max_bytes):
    """The limit is before, inside and after it."""
    site.replies["/"] = reply(f"{SECRET} {SECRET} and more{'.' * 200}{SECRET}")
    response = await run(secret_kit(site, max_bytes=max_bytes), url=site.url())
    assert (response["size_bytes"], response["truncated"]) == (max_bytes, True)
    assert "s" not in response["text"]


async def test_a_secret_echoed_in_a_header_or_redirect_is_masked(site):
    """In the headers, the final URL, the redirect URLs, and in failures."""
    site.replies |= {
        "/h": reply("x", ETag=f'"{SECRET}"', Link="x" * 1990 + SECRET),
        "/r": reply(status="302 Found", Location=f"/{SECRET}"),
        f"/{SECRET}": reply("x"),
        "/host": reply(status="302 Found", Location="http://s3cretvalue.evil.example/"),
        "/bad": reply(status="302 Found", Location=f"x://{'y' * 490}{SECRET}"),
    }
    kit = secret_kit(site)
    for path in ("/h", "/r", "/bad"):
        assert "s3cret" not in json.dumps(await run(kit, url=site.url(path)))
    named = site.kit(headers={site.host: {"X-Key": "S3cretValue"}})
    failed = await run(named, url=site.url("/host"))
    assert failed["kind"] == "host_not_allowed"
    assert "s3cretvalue" not in json.dumps(failed).lower()


async def test_a_decoded_basic_password_is_masked_too(site):
    """Servers decode it before they echo it."""
    site.replies["/"] = reply("hello admin, your password is correct-horse")
    credentials = base64.b64encode(b"admin:correct-horse").decode()
    kit = site.kit(headers={site.host: {"Authorization": f"Basic {credentials}"}})
    assert (await run(kit, url=site.url()))["text"] == f"hello admin, your password is {'*' * 13}"


async def test_a_secret_is_in_no_repr_manifest_or_preview(site):
    """It is in nothing that is logged, stored or shown."""
    kit = secret_kit(site, methods=["GET", "POST"])
    tool = kit.find("http_request")
    tool_input = {"url": site.url(f"/?key={SECRET}"), "method": "POST", "body": f"key={SECRET}"}
    preview = tool.preview(tool.decode(json.dumps(tool_input)), None)
    for text in (repr(kit), preview.text, *(each.manifest.model_dump_json() for each in kit)):
        assert "s3cret" not in text


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"other.example": {"A": "b"}}, "not in the allow list"),
        ({"Authorization": SECRET}, "go by host"),
        ({"api.example": SECRET}, "go by host"),
        ({"api.example": {"A b": SECRET}}, "'A b'"),
        ({"api.example": {"Host": SECRET}}, "'Host'"),
        ({"api.example": {"content-length": "5"}}, "'content-length'"),
        ({"api.example": {"X-Key": f"{SECRET}\r\nX-Other: 1"}}, "'X-Key'"),
        ({"api.example": {"X-Key": f"{SECRET}\u20ac"}}, "'X-Key'"),
        ({"api.example": {"X-Key": ""}}, "'X-Key'"),
    ],
)
def test_wrong_headers_refuse_the_start_without_showing_the_value(headers, message):
    """The message names the header, which is what to fix."""
    with pytest.raises(ConfigurationError) as refused:
        http_toolkit(["api.example"], headers=headers)
    assert message in refused.value.message
    assert SECRET not in refused.value.message


# --- requests that change something


async def test_a_request_is_sent_as_shown_with_the_calls_own_key(site):
    """Method, body and content type are as shown; the key lets a server recognise a repeat."""
    site.replies["/orders"] = reply('{"id": 1}', status="201 Created", Location="/orders/1")
    kit = site.kit(methods=["POST", "PUT"])
    tool_input = {"method": "POST", "url": site.url("/orders"), "body": '{"n": "\u20ac"}'}
    tool = kit.find("http_request")
    preview = tool.preview(tool.decode(json.dumps(tool_input)), None)
    assert preview.text == (
        f'POST {site.url("/orders")}\nAccept: */*\nContent-Type: application/json\n\n{{"n": "\u20ac"}}'
    )
    assert site.requests == []
    response = await run(kit, "http_request", **tool_input)
    assert (response["status"], response["headers"]["location"]) == (201, "/orders/1")
    sent = site.requests[0]
    assert (sent.method, sent.body.decode()) == ("POST", '{"n": "\u20ac"}')
    assert (sent.headers["content-type"], sent.headers["idempotency-key"]) == ("application/json", "key_1")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_request_that_changes_something_follows_no_redirect(site, status):
    """The approved request went to the URL that was shown, and nowhere else."""
    site.replies |= {"/": reply(status=status, Location="http://0177.0.0.1/"), "/elsewhere": reply("x")}
    response = await run(site.kit(methods=["DELETE"]), "http_request", method="DELETE", url=site.url())
    assert response["headers"]["location"] == "http://0177.0.0.1/"
    assert [each.path for each in site.requests] == ["/"]
    assert "content-type" not in site.requests[0].headers


def test_reading_is_free_and_changing_asks():
    """The tools' own ask says so; methods that were not enabled don't exist."""
    kit = http_toolkit(["api.example"], methods=["GET", "HEAD", "POST", "DELETE"])
    assert {tool.name: (tool.effect, evaluate(Policy(), tool, None, agent="a").answer) for tool in kit} == {
        "http_get": ("read", "allow"),
        "http_request": ("once", "ask"),
    }
    assert http_toolkit(["api.example"]).names == ["http_get"]
    assert http_toolkit(["api.example"], methods=["PATCH"]).names == ["http_request"]


def test_anyone_may_have_written_what_a_host_returns_unless_it_is_ones_own():
    """Both tools, by default."""
    for options, untrusted in (({}, {True}), ({"untrusted": False}, {False})):
        kit = http_toolkit(["api.example"], methods=["GET", "POST"], **options)
        assert {tool.untrusted for tool in kit} == untrusted


async def test_a_method_that_is_not_allowed_does_not_fit_the_schema(site):
    """It is refused at planning, before anyone is asked; the model sees which ones there are."""
    kit = site.kit(methods=["GET", "POST", "PUT"])
    for name, method in (
        ("http_request", "DELETE"),
        ("http_request", "GET"),
        ("http_get", "HEAD"),
        ("http_get", "POST"),
    ):
        assert (await run(kit, name, url=site.url(), method=method))["kind"] == "input_validation_error"
    schemas = {tool.name: tool.manifest.parameters["properties"]["method"] for tool in kit}
    assert (schemas["http_get"]["enum"], schemas["http_get"]["default"]) == (["GET"], "GET")
    assert schemas["http_request"]["enum"] == ["POST", "PUT"]
    assert "method" in kit.find("http_request").manifest.parameters["required"]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "", "a ", "\u20ac", "x" * 201, "a\n"])
async def test_the_model_cannot_smuggle_a_header(site, value):
    """Through the two header values that it sets."""
    kit = site.kit(methods=["GET", "POST"])
    for field_name in ("accept", "content_type"):
        tool_input = {"url": site.url(), "method": "POST", "body": "x", field_name: value}
        assert (await run(kit, "http_request", **tool_input))["kind"] == "input_validation_error"
    assert (await run(kit, url=site.url(), accept=value))["kind"] == "input_validation_error"
    assert site.requests == []


@pytest.mark.parametrize("url", ["http://evil.example/", "http://user@api.example/", "not a URL", "http://127.1/"])
def test_a_preview_says_when_a_request_would_fail(url):
    """The operator need not approve it to find out."""
    tool = http_toolkit(["api.example"], methods=["POST"]).find("http_request")
    preview = tool.preview(tool.decode(json.dumps({"url": url, "method": "POST", "body": "x"})), None)
    assert preview.text.startswith("this request would fail: ")


# --- failures


async def test_a_closed_port_is_a_failure_before_sending(site):
    """A repeat is safe."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    kit = http_toolkit([f"127.0.0.1:{port}"], methods=["POST"], allow_private=True)
    failed = await run(kit, "http_request", url=f"http://127.0.0.1:{port}/", method="POST")
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "connect", False)


@pytest.mark.parametrize("answer", ["silent", "cut off"])
async def test_i3_a_request_without_a_response_may_have_happened(site, answer):
    """It left, and the server may have acted on it: of a `once` request no one knows, and it is no failure."""
    site.replies["/"] = silent if answer == "silent" else b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"
    kit = site.kit(methods=["POST"], timeout=timedelta(seconds=1))
    ended = await run_tool(kit.find("http_request"), url=site.url(), method="POST")
    assert isinstance(ended, Unknown)
    assert ended.why.startswith("The request was sent, and there is no response")
    assert len(site.requests) == 1


async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Keep the connection busy forever, byte by byte."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_a_slow_server_is_bounded_by_the_whole_calls_timeout(site):
    """A server that drips a byte now and then is never silent; the connection is closed all the same."""
    site.replies |= {"/drip": drip, "/silent": silent}
    kit = site.kit(timeout=timedelta(seconds=1))
    for failed in await asyncio.gather(*(run(kit, url=site.url(path)) for path in ("/drip", "/silent"))):
        assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "timeout", True)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
    ],
)
async def test_a_broken_server_is_a_declared_failure(site, answer):
    """The tool never crashes."""
    site.replies["/"] = answer
    failed = await run(site.kit(), url=site.url())
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "bad_response", True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": []}, "methods"),
        ({"methods": "GET"}, "methods"),
        ({"methods": ["get"]}, "methods"),
        ({"methods": ["CONNECT"]}, "methods"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": timedelta(hours=1)}, "timeout"),
    ],
)
def test_wrong_limits_refuse_the_start(options, message):
    """The error has the limit's name."""
    with pytest.raises(ConfigurationError, match=message):
        http_toolkit(["api.example"], **options)


# --- TLS


async def loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_tls_is_about_the_name_though_an_address_is_dialled(tmp_path):
    """SNI and the certificate check use the name; another name or an unknown authority is refused before sending."""
    certificate, key = certificate_for("secure.example", tmp_path)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate, key)
    asked_for: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    site = Site(replies={"/": reply("secure")})
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=server_tls)
    site.port = server.sockets[0].getsockname()[1]
    allow = [f"secure.example:{site.port}", f"other.example:{site.port}"]
    trusting = http_toolkit(
        allow, allow_private=True, resolve=loopback, tls=ssl.create_default_context(cafile=str(certificate))
    )
    public_only = http_toolkit(allow, allow_private=True, resolve=loopback)

    response = await run(trusting, url=f"https://secure.example.:{site.port}/")
    assert (response["text"], asked_for) == ("secure", ["secure.example"])
    assert site.requests[0].headers["host"] == f"secure.example:{site.port}"
    for kit, name in ((trusting, "other.example"), (public_only, "secure.example")):
        failed = await run(kit, url=f"https://{name}:{site.port}/")
        assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "tls", False)
    assert len(site.requests) == 1
    server.close()


async def test_a_server_without_tls_is_a_tls_failure():
    """Nothing of the request was sent in the clear."""
    received: list[bytes] = []

    async def answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        received.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(answer_at_once, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    failed = await run(http_toolkit([host], allow_private=True), url=f"https://{host}/secret-path")
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "tls", False)
    server.close()
    await server.wait_closed()
    assert b"secret-path" not in b"".join(received)


# --- interrupts


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"])
async def test_an_interrupt_closes_the_connection(site, head):
    """Before the response, or in the middle of its body: the server sees the end of the connection at once."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        begun.set()
        await reader.read()
        ended.set()

    site.replies["/"] = wait_for_the_end
    call = asyncio.create_task(run(site.kit(), url=site.url()))
    await asyncio.wait_for(begun.wait(), 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(ended.wait(), 60)
