"""The guard against requests into a private network: addresses, URLs, allow list, and what is really dialled."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.one_call import read_tool

import turngate
from turngate.domain.errors import ConfigurationError
from turngate.toolkits.http import http_toolkit
from turngate.toolkits.http_client.hosts import AllowList, BadUrl, HostPattern, Target
from turngate.toolkits.http_client.safe_connect import reach_of

PUBLIC = "93.184.215.14"
OTHER_PUBLIC = "2606:4700::6810:84e5"
ANY = "0.0.0.0"  # noqa: S104 - an address to refuse, not to bind to
METADATA = "169.254.169.254"


@dataclass
class Network:
    """An internet on loopback: it answers lookups, and connects every address to one local server.

    ``answers``: name → the result of each lookup; the last one repeats. ``lookups`` and ``dialled`` record.
    ``hosts``: the Host header of each request. ``respond``: path → raw response.
    """

    port: int = 0
    answers: dict[str, list[list[str]]] = field(default_factory=dict)
    respond: Callable[[str], str] = lambda _path: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    dead: set[str] = field(default_factory=set)
    lookups: list[str] = field(default_factory=list)
    dialled: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        self.lookups.append(host)
        if host not in self.answers:
            raise OSError("no such name")
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.hosts += [line[6:] for line in head.split("\r\n") if line.startswith("Host: ")]
            writer.write(self.respond(head.split()[1]).encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def fetch(self, url: str, allow: Sequence[str], **options) -> dict:
        """Call http_get through the executor; return a failure's fields and kind."""
        kit = http_toolkit(allow, resolve=self.resolve, dial=Dial(self), **options)
        return await read_tool(kit.find("http_get"), url=url)


class Dial(httpcore.AsyncNetworkBackend):
    """Connects to the local server for any address, and records the address."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.real = httpcore.AnyIOBackend()

    async def connect_tcp(self, host, port, timeout=None, local_address=None, socket_options=None):  # noqa: ASYNC109 - httpcore's
        self.network.dialled.append(host)
        if host in self.network.dead:
            raise httpcore.ConnectError("refused")
        return await self.real.connect_tcp("127.0.0.1", self.network.port, timeout, local_address, socket_options)


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network(answers={"allowed.example": [[PUBLIC]], "sub.allowed.example": [[PUBLIC]]})
    server = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    yield network
    server.close()
    await server.wait_closed()


def redirect(to: str) -> str:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"


# --- addresses


@pytest.mark.parametrize(
    ("reach", "addresses"),
    [
        (
            "public",
            f"{PUBLIC} 1.1.1.1 8.8.8.8 {OTHER_PUBLIC} 2a00:1450:4001::1 64:ff9b::8.8.8.8 172.32.0.1 100.128.0.1",
        ),
        (
            "private",
            "127.0.0.1 127.255.0.1 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 ::1 fc00::1 fd12::1",
        ),
        ("private", "fd00:ec2::254 100.100.100.200"),
        ("never", f"{METADATA} 169.254.0.1 0.0.0.0 0.1.2.3 224.0.0.1 239.255.255.255 255.255.255.255 240.0.0.1"),
        ("never", "168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 192.88.99.1"),
        ("never", ":: fe80::1 fe80::1%eth0 fec0::1 ff02::1 2001:db8::1 3fff::1 100::1 5f00::1 4000::1"),
        ("never", "::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 ::ffff:0:127.0.0.1"),
        ("never", "2002:7f00:1::1 2002:808:808::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 64:ff9b::7f00:1"),
        ("never", "64:ff9b::169.254.169.254 64:ff9b::10.0.0.1 64:ff9b:1::8.8.8.8"),
    ],
)
def test_the_reach_of_an_address(reach, addresses):
    """The table of the special-purpose registries, and every format that embeds another address."""
    assert {text: reach_of(ipaddress.ip_address(text)) for text in addresses.split()} == dict.fromkeys(
        addresses.split(), reach
    )


ADDRESSES = st.ip_addresses() | st.builds(
    lambda block, low: ipaddress.IPv6Address(int(ipaddress.IPv6Address(block)) + low),
    st.sampled_from(["2001::", "2001:db8::", "2002::", "fc00::", "64:ff9b::", "::ffff:0:0", "::", "fe80::", "ff00::"]),
    st.integers(0, 2**64 - 1),
)


@given(ADDRESSES)
def test_nothing_that_python_calls_local_is_public(address):
    """A second opinion: Turngate's table is never laxer than `ipaddress`, and does not have its gaps."""
    if reach_of(address) == "public":
        assert address.is_global
        assert not any((address.is_multicast, address.is_private, address.is_loopback, address.is_link_local))


# --- URLs

HOSTILE = [
    "http://allowed.example@evil.example/",
    "http://allowed.example:80@evil.example/",
    "http://@allowed.example/",
    "http://user:password@allowed.example/",
    "http://allowed.example.evil.example/",
    "http://evil.example/allowed.example",
    "http://evil.example?allowed.example",
    "http://evil.example#@allowed.example",
    "http://evil.example\\@allowed.example/",
    "http://allowed.example\\.evil.example/",
    "http://evil-allowed.example/",
    "http://allowed.example%00.evil.example/",
    "http://allowed%2eexample/",
    "http://allowed.example%40evil.example/",
    "http://allowed.example..",
    "http://.allowed.example/",
    "http://allowed..example/",
    "http://allowed.example:8080/",
    "http://allowed.example:0/",
    "http://allowed.example:99999/",
    "http://allowed.example:80:80/",
    "http://allowed.example:+80/",
    "http:// allowed.example/",
    " http://allowed.example/",
    "http://allowed.example/\r\nHost: evil.example",
    "http://allowed.example\n.evil.example/",
    "http://allowed.example/\x00",
    "http:allowed.example",
    "http:/allowed.example/",
    "http:///allowed.example/",
    "//allowed.example/",
    "allowed.example",
    "",
    "http://",
    "ftp://allowed.example/",
    "file:///etc/passwd",
    "gopher://allowed.example/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.0.0.1/",
    "http://127.0.0.1./",
    "http://127.0.0.1.example:80/",
    "http://0/",
    "http://0.0.0.0/",
    "http://localhost/",
    "http://localhost./",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1/",
    "http://::1/",
    f"http://{METADATA}/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://metadata.google.internal/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http://\u24d0llowed.example/",
    "http://allowed.example\u3002evil.example/",
    "http://allowed\u2024example/",
    "http://\u0430llowed.example/",
    "http://allowed.example\u200b/",
    "http://allowed.example\ud800/",
    f"http://{'a.' * 130}example/",
    f"http://{'a' * 64}.allowed.example/",
    "http://allowed.example/" + "x" * 9000,
]


async def test_a_hostile_url_is_refused_before_any_lookup(network):
    """A declared failure, no lookup, no connection. Any ambiguous URL is refused."""
    for url in HOSTILE:
        failed = await network.fetch(url, ["allowed.example", "*.sub.allowed.example"])
        assert failed["kind"] in {"bad_url", "host_not_allowed", "input_validation_error"}, url
        assert (network.lookups, network.dialled) == ([], []), url


# As a Location these are paths on the same host, or cannot be written into a header.
_HARMLESS_AS_LOCATION = {
    "",
    "allowed.example",
    " http://allowed.example/",
    "//allowed.example/",
    "http:allowed.example",
    "http:/allowed.example/",
    "http:///allowed.example/",
    "http://",
}
LOCATIONS = [url for url in HOSTILE if url.isascii() and url.isprintable() and url not in _HARMLESS_AS_LOCATION]


async def test_a_redirect_to_a_hostile_url_is_refused_before_any_lookup(network):
    """A server is trusted no more than the model."""
    for count, url in enumerate(LOCATIONS, 1):
        network.respond = lambda path, url=url: redirect(url) if path == "/start" else "HTTP/1.1 200 OK\r\n\r\nevil"
        failed = await network.fetch("http://allowed.example/start", ["allowed.example", "*.sub.allowed.example"])
        assert failed["kind"] in {"request_failed", "host_not_allowed"}, url
        assert failed.get("cause", "bad_redirect") == "bad_redirect", url
        assert (network.lookups, network.dialled) == (["allowed.example"] * count, [PUBLIC] * count), url


@pytest.mark.parametrize(
    ("url", "host", "sent"),
    [
        ("http://ALLOWED.Example/", "allowed.example", "allowed.example"),
        ("HTTP://allowed.example", "allowed.example", "allowed.example"),
        ("http://allowed.example./path", "allowed.example", "allowed.example"),
        ("http://allowed.example:80/?q=a b#fragment", "allowed.example", "allowed.example"),
        ("http://b\u00fccher.example/", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("http://B\u00dcCHER.example/", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("http://XN--BCHER-KVA.example/", "xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("http://allowed\u3002example/", "allowed.example", "allowed.example"),
    ],
)
async def test_every_spelling_of_an_allowed_host_is_sent_in_one_form(network, url, host, sent):
    """Lookup, check and Host header use the same name."""
    network.answers["xn--bcher-kva.example"] = [[PUBLIC]]
    response = await network.fetch(url, ["Allowed.EXAMPLE.", "b\u00fccher.example"])
    assert response["status"] == 200
    assert (network.lookups, network.hosts) == ([host], [sent])
    assert "#" not in response["url"]


@given(st.text(max_size=60))
def test_no_text_crashes_the_parser(text):
    """Any text is a target or a BadUrl, and a target's host is in its one normal form."""
    for url in (text, f"http://{text}", f"http://{text}.example/", f"https://[{text}]:{text}/"):
        try:
            target = Target.parse(url)
        except BadUrl:
            continue
        assert target.host == target.host.lower().rstrip(".")
        assert target.url.raw_host.decode() == target.host
        assert Target.parse(str(target.url)) == target


# --- the allow list


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        ("example.com", "http://example.com https://example.com/x", "http://a.example.com https://example.com:444"),
        ("*.example.com", "http://a.example.com http://a.b.example.com", "http://example.com http://evil-example.com"),
        ("*.example.com", "https://xn--a-b.example.com", "http://aexample.com http://a.example.com.evil.org"),
        (
            "example.com:8443",
            "https://example.com:8443 http://example.com:8443",
            "https://example.com http://example.com",
        ),
        ("*.example.com:81", "http://a.example.com:81", "http://a.example.com http://example.com:81"),
        ("10.0.0.5", "http://10.0.0.5", "http://10.0.0.50 http://10.0.0.5.example"),
        ("[2001:DB8::0:1]:80", "http://[2001:db8::1]", "http://[2001:db8::2] https://[2001:db8::1]"),
        (
            "example.com",
            "http://example.com:80 https://example.com:443",
            "http://example.com:443 https://example.com:80",
        ),
    ],
)
def test_what_an_entry_of_the_allow_list_matches(entry, yes, no):
    """Whole labels only; the scheme's own port unless another is named."""
    pattern = HostPattern.parse(entry)
    assert [url for url in yes.split() if not pattern.matches(Target.parse(url))] == []
    assert [url for url in no.split() if pattern.matches(Target.parse(url))] == []
    assert HostPattern.parse(str(pattern)) == pattern


WRONG_ENTRIES = """
https://example.com example.com/path example.com?x http:// user@example.com
* *. *example.com a.*.com *.*.com *.127.0.0.1 *.[::1] *.*
127.1 ::1 example..com example.com:0 example.com:99999 example.com: -.com
"""


@pytest.mark.parametrize("entry", [*WRONG_ENTRIES.split(), "", "a b", "example.com\n"])
def test_a_wrong_entry_refuses_the_start(entry):
    """The error names the entry and how to write it."""
    with pytest.raises(ConfigurationError, match=r"Write it like"):
        AllowList.of([entry])


@pytest.mark.parametrize("allow", ["example.com", [], ()])
def test_an_allow_list_as_a_string_refuses_the_start(allow):
    """A string is a sequence of letters, and each letter is a valid host name."""
    with pytest.raises(ConfigurationError, match="as a list"):
        http_toolkit(allow)


# --- what is dialled


async def test_the_checked_address_is_dialled_and_the_name_sent(network):
    """One lookup; the connection goes to an address; Host has the name."""
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["text"] == "ok"
    assert (network.lookups, network.dialled, network.hosts) == (["allowed.example"], [PUBLIC], ["allowed.example"])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", METADATA, "::1", "::ffff:127.0.0.1", ANY, "fe80::1%lo"])
async def test_an_allowed_name_that_leads_inside_is_refused(network, address):
    """Nothing is dialled, and the model does not learn the name's address."""
    network.answers["allowed.example"] = [[address]]
    failed = await network.fetch("http://allowed.example/", ["allowed.example"])
    assert (failed["kind"], failed["host"], network.dialled) == ("host_not_allowed", "allowed.example", [])
    assert address not in failed["reason"]


@pytest.mark.parametrize("answer", [[PUBLIC, "10.0.0.1"], ["10.0.0.1", PUBLIC], [OTHER_PUBLIC, METADATA]])
async def test_a_name_with_public_and_private_addresses_is_refused(network, answer):
    """Otherwise an attacker lets the public one refuse the connection, and the next is tried."""
    network.answers["allowed.example"] = [answer]
    network.dead = {PUBLIC, OTHER_PUBLIC}
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["kind"] == "host_not_allowed"
    assert network.dialled == []


async def test_dns_rebinding_gets_nowhere(network):
    """First answer public, second private: within a call there is no second lookup, and the next call checks again."""
    network.answers["allowed.example"] = [[PUBLIC], ["127.0.0.1"]]
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["status"] == 200
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["kind"] == "host_not_allowed"
    assert network.dialled == [PUBLIC]


async def test_dns_rebinding_by_way_of_a_redirect_gets_nowhere(network):
    """A server redirects to itself, after its name was pointed elsewhere."""
    network.answers["allowed.example"] = [[PUBLIC], [METADATA]]
    network.respond = lambda _path: redirect("/again")
    failed = await network.fetch("http://allowed.example/", ["allowed.example"])
    assert (failed["kind"], network.dialled) == ("host_not_allowed", [PUBLIC])
    assert network.lookups == ["allowed.example", "allowed.example"]


async def test_the_next_address_is_tried_when_one_does_not_answer(network):
    """In the resolver's order, and only a few."""
    network.answers["allowed.example"] = [[OTHER_PUBLIC, PUBLIC]]
    network.dead = {OTHER_PUBLIC}
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["status"] == 200
    assert network.dialled == [OTHER_PUBLIC, PUBLIC]
    network.dialled.clear()
    network.dead = {f"1.1.1.{number}" for number in range(50)}
    network.answers["allowed.example"] = [sorted(network.dead)]
    failed = await network.fetch("http://allowed.example/", ["allowed.example"])
    assert (failed["cause"], failed["maybe_sent"], len(network.dialled)) == ("connect", False, 4)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("10.0.0.1", True),
        ("fd00::1", True),
        (METADATA, False),
        (ANY, False),
        ("ff02::1", False),
    ],
)
async def test_allow_private_opens_private_networks_and_no_more(network, address, allowed):
    """Cloud credentials stay out of reach, even of an allowed name."""
    network.answers["intranet.example"] = [[address]]
    result = await network.fetch("http://intranet.example/", ["intranet.example"], allow_private=True)
    assert (result.get("status") == 200, network.dialled) == (allowed, [address] if allowed else [])


async def test_allow_private_does_not_open_other_hosts(network):
    """It says where an allowed name may point, not which names are allowed."""
    for url in ("http://127.0.0.1/", "http://localhost/", f"http://{METADATA}/"):
        failed = await network.fetch(url, ["intranet.example"], allow_private=True)
        assert (failed["kind"], network.dialled) == ("host_not_allowed", [])


async def test_even_an_allowed_metadata_address_is_refused(network):
    """A slip in the list does not expose the machine's credentials."""
    failed = await network.fetch(f"http://{METADATA}/", [METADATA], allow_private=True)
    assert (failed["kind"], network.dialled) == ("host_not_allowed", [])


async def test_a_redirect_chain_is_checked_hop_by_hop(network):
    """Allowed, allowed, then the metadata service."""
    chain = {"/": "http://sub.allowed.example/2", "/2": f"http://{METADATA}/"}
    network.respond = lambda path: redirect(chain[path])
    failed = await network.fetch("http://allowed.example/", ["allowed.example", "*.allowed.example"])
    assert (failed["kind"], failed["host"]) == ("host_not_allowed", METADATA)
    assert network.lookups == ["allowed.example", "sub.allowed.example"]


async def test_the_environment_names_no_proxy(network, monkeypatch):
    """A proxy would look up the name itself, without any check."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    assert (await network.fetch("http://allowed.example/", ["allowed.example"]))["status"] == 200
    assert network.dialled == [PUBLIC]


async def test_a_name_that_does_not_exist_is_a_declared_failure(network):
    """It was not sent, so the model may try again."""
    failed = await network.fetch("http://missing.allowed.example/", ["*.allowed.example"])
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "connect", False)


async def test_a_resolver_that_hangs_is_bounded(network):
    """The call's own timeout applies."""

    async def hang(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    network.resolve = hang
    failed = await network.fetch("http://allowed.example/", ["allowed.example"], timeout=timedelta(seconds=1))
    assert (failed["kind"], failed["cause"], failed["maybe_sent"]) == ("request_failed", "timeout", False)


def test_one_module_knows_what_is_private_to_httpx() -> None:
    """A change of the HTTP library is a change of one module and of imports."""
    root = Path(turngate.__file__).parent
    knowing = [
        path.name for path in root.rglob("*.py") if re.search(r"\b(httpcore\.|import httpcore)", path.read_text())
    ]
    assert knowing == ["safe_connect.py"]
