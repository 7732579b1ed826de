"""A real OpenID provider to log in with: canaille, in its own process, with its state in memory.

Run as a program with its port and Turngate's callback address (JSON, one argument); prints ``up`` when it serves.
Its people: ``ida`` (groups ops and staff), ``nora`` (no group), ``gus`` (group guests). Its clients: ``turngate`` and
``other``, with the same secret.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from turngate.runtime.embedded_temporal import choose_port

PASSWORD = "canaille-password"
SECRET = "the clients' secret"
SCOPES = "openid profile email groups"


@dataclass(frozen=True)
class Provider:
    """The provider as a test sees it."""

    issuer: str

    async def log_in(self, url: str, name: str) -> str:
        """Go through the provider's own pages as ``name``, from the address that Turngate sent the browser to.

        Returns the address that the provider redirects the browser to. It asks for consent the first time only.
        """
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False) as browser:
            answer = await browser.get(url)
            for _ in range(12):
                if answer.is_redirect:
                    target = urljoin(str(answer.url), answer.headers["location"])
                    if not target.startswith(self.issuer):
                        return target
                    answer = await browser.get(target)
                    continue
                answer = await self._submit(browser, answer, name)
        raise AssertionError(
            f"the provider never came to an end: {answer.status_code} {answer.url}\n{answer.text[-2000:]}"
        )

    async def _submit(self, browser: httpx.AsyncClient, page: httpx.Response, name: str) -> httpx.Response:
        token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', page.text)
        assert token is not None, page.text
        fields = {"csrf_token": token.group(1)}
        if 'name="login"' in page.text:
            fields["login"] = name
        elif 'name="password"' in page.text:
            fields["password"] = PASSWORD
        else:
            fields["answer"] = "accept"
        return await browser.post(str(page.url), data=fields)


@contextmanager
def running_provider(callback: str, log: Path) -> Iterator[Provider]:
    """Run the provider until the block ends. ``log``: a file for its output."""
    port = choose_port()
    command = [sys.executable, str(Path(__file__)), json.dumps({"port": port, "callback": callback})]
    with log.open("wb") as output, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"up\n":
                raise AssertionError(f"the provider did not start:\n{log.read_text()[-3000:]}")
            yield Provider(f"http://127.0.0.1:{port}")
        finally:
            process.kill()


def serve(port: int, callback: str) -> None:
    """Be the provider."""
    from canaille import create_app  # noqa: PLC0415 - only in the provider's own process
    from canaille.app import models  # noqa: PLC0415
    from canaille.backends import Backend  # noqa: PLC0415
    from canaille.backends.memory.backend import MemoryBackend  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    any_of = MemoryBackend.do_query

    def all_of(self: Any, model: Any, **wanted: Any) -> list[Any]:
        """Find rows that match every value. canaille's own query matches any: with two open codes it takes the wrong one."""
        rows = any_of(self, model, **wanted)
        for name, value in wanted.items():
            ids = {each.id for each in any_of(self, model, **{name: value})}
            rows = [each for each in rows if each.id in ids]
        return rows

    MemoryBackend.do_query = all_of
    app = create_app(
        {
            "SECRET_KEY": "only for tests, only on loopback",
            "SERVER_NAME": f"127.0.0.1:{port}",
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {
                "DATABASE": "memory",
                "AUTHENTICATION_FACTORS": ["password"],
                "SMTP": None,  # else it looks for a mail server on this machine
            },
            "CANAILLE_OIDC": {},
        }
    )
    with app.app_context():
        keep = Backend.instance.save
        people = {}
        for name in ("ida", "nora", "gus"):
            people[name] = models.User(
                user_name=name,
                password=PASSWORD,
                formatted_name=name.title(),
                family_name=name.title(),
                display_name=name.title(),
                emails=[f"{name}@example.com"],
            )
            keep(people[name])
        for group, member in (("ops", "ida"), ("staff", "ida"), ("guests", "gus")):
            keep(models.Group(display_name=group, members=[people[member]]))
        for name in ("turngate", "other"):
            client = models.Client(
                client_id=name,
                client_secret=SECRET,
                client_name=name,
                client_uri="https://turngate.example",
                redirect_uris=[callback],
                grant_types=["authorization_code"],
                response_types=["code"],
                scope=SCOPES.split(),
                token_endpoint_auth_method="client_secret_basic",
            )
            keep(client)
            client.audience = [client]  # kept by its id, which saving it has made
            keep(client)
    server = make_server("127.0.0.1", port, app, threaded=True)
    print("up", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
