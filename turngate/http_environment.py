"""What the environment tells HTTP clients (proxies, certificates), whether that can work, and a client that heeds it.

A client is made of these variables when it is created, so one that names a file that is gone fails there, before any request.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from turngate.domain.errors import ConfigurationError

PROXIES: Final = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
SCHEMES: Final = ("http", "https", "socks5", "socks5h")
BUNDLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Of httpx and OpenSSL, and of the libraries that some providers' clients and exporters use."""


def problem_of(environment: Mapping[str, str]) -> str | None:
    """Return what can't work in these variables, naming the variable; None: nothing. Passwords are not repeated."""
    return _problem_of_proxies(environment) or _problem_of_certificates(environment)


def without_credentials(url: str) -> str:
    """Return an address as it may be shown: without a name and password in it, and a slash at its end."""
    return str(httpx.URL(url).copy_with(username=None, password=None)).rstrip("/")


def client_for(url: str) -> httpx.AsyncClient:
    """Return a client for requests to this address. A proxy of the environment is not for this machine's own servers.

    Raises ConfigurationError: the environment can't work, and names the variable.
    """
    with _usable_for(url) as trust_env:
        return httpx.AsyncClient(trust_env=trust_env, verify=httpx.create_ssl_context())


def sync_client_for(url: str, *, tls: ssl.SSLContext, seconds: float) -> httpx.Client:
    """Return a client as :func:`client_for` does, for code that waits.

    ``tls``: what certificates are checked with.
    """
    with _usable_for(url) as trust_env:
        return httpx.Client(trust_env=trust_env, verify=tls, timeout=seconds)


@contextmanager
def _usable_for(url: str) -> Iterator[bool]:
    """Tell whether a client for this address heeds the environment's proxies, and say which variable makes none possible."""
    local = is_local(url)
    problem = _problem_of_certificates(os.environ) if local else problem_of(os.environ)
    if problem:
        raise ConfigurationError(problem)
    try:
        yield not local
    except (ValueError, httpx.InvalidURL) as error:  # what is looked up in NO_PROXY only here
        raise ConfigurationError(
            f"NO_PROXY can't be read ({error}): write names and addresses with commas between"
        ) from None


def require_certificates() -> None:
    """Raise ConfigurationError for certificates that this process can't use, for clients that heed no proxy."""
    if problem := _problem_of_certificates(os.environ):
        raise ConfigurationError(problem)


def require_usable() -> None:
    """Raise ConfigurationError for what :func:`problem_of` finds in this process."""
    if problem := problem_of(os.environ):
        raise ConfigurationError(problem)


def ask_directly(url: str) -> None:
    """Have no client in this process that reads the environment ask a proxy for this address, if it is on this machine.

    For libraries that make their own clients; ours are made by :func:`client_for`. Call it before they are made.
    """
    if not is_local(url):
        return
    host, spared = urlsplit(url).hostname or "", os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if host not in spared.split(","):  # the name in small letters wins where both are set
        os.environ["no_proxy"] = ",".join(filter(None, (spared, host)))


def is_local(url: str) -> bool:
    """Tell whether a URL leads to this machine, by its name or a loopback address."""
    host = urlsplit(url).hostname or ""
    return is_loopback(host) or host.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Tell whether a host is loopback, and so reachable from this machine only. A name such as ``127.example`` isn't."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _problem_of_proxies(environment: Mapping[str, str]) -> str | None:
    for name in PROXIES:
        for each in (name.lower(), name):  # the order in which clients look
            if value := environment.get(each, ""):
                if problem := _problem_of_proxy(each, value):
                    return problem
                break
    return None


def _problem_of_proxy(name: str, value: str) -> str | None:
    written = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(written)
        good = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number
        good = False
    if not good:
        return f"{name} is no proxy's address: write {' or '.join(f'{each}://HOST:PORT' for each in SCHEMES[::2])}, or unset it"
    if written.startswith("socks") and find_spec("socksio") is None:
        return (
            f"{name} names a SOCKS proxy, which needs a package that is not installed: pip install 'httpx[socks]'. Or unset it; "
            "where only one server is reached through it, start Turngate without it"
        )
    return None


def _problem_of_certificates(environment: Mapping[str, str]) -> str | None:
    for name in BUNDLES:
        value = environment.get(name, "")
        path = Path(value)
        if value and not (path.is_file() or (name != "SSL_CERT_FILE" and path.is_dir())):
            return f"{name}={value}: there is no such file. Name one with certificates of authorities, or unset it"
    directories = environment.get("SSL_CERT_DIR", "")
    if directories and not any(Path(each).is_dir() for each in directories.split(os.pathsep)):
        return f"SSL_CERT_DIR={directories}: there is no such directory. Unset it to use the usual authorities"
    file = environment.get("SSL_CERT_FILE")
    if file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
        except OSError as error:  # ssl.SSLError is one
            why = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
            return f"SSL_CERT_FILE={file} can't be used: {why}. Unset it to use the usual authorities"
    return None
