"""A real Chromium on the real pages of a real engine: store, Temporal, worker and uvicorn, shared by the session."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect
from pydantic import BaseModel, Field
from starlette.datastructures import State
from support.api.api_server import serving
from support.engine.stack import Cast, ListModel, Stack, call, says, stack, until
from support.engine.sub_agent_app import LIMITS, Acting, World
from support.pages.plain_browser import PlainBrowser
from support.servers.oidc_provider import SCOPES, SECRET, running_provider
from temporalio.client import Client

from turngate.activities.execution import settlement
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.settings import ApiSettings, OidcSettings
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.digest import idempotency_key
from turngate.domain.errors import ModelError
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.declare import interaction_tool, tool
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.runtime.embedded_temporal import choose_port
from turngate.runtime.temporal_client import data_converter
from turngate.store import agents
from turngate.store.access import people, sessions
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, runs

expect.set_options(timeout=30_000)
CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
"""The shell is the same engine without windows and menus, for half of the processor time."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    # Without a process of its own for what a GPU would do, a page takes a tenth less processor time.
    "--in-process-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A name that isn't this machine's own, as people have it who reach Turngate by http in their network.
    "--host-resolver-rules=MAP *.turngate.test 127.0.0.1",
    # A new page goes into the process of the open pages of the same site and context.
    "--process-per-site",
    # A page that replaces one of the same site keeps its frame, for a seventh of a page's processor time less. The second is
    # for a name on plain http, which Playwright's list, that this one replaces, has, too.
    "--disable-features=RenderDocument,HttpsUpgrades",
]


class Refund(BaseModel):
    """One parameter of each type that the edit form knows."""

    order: str = Field(description="The order's number, such as A-7.")
    cents: int = Field(description="Amount in cents.")
    rate: float = 1.0
    speed: Literal["normal", "express"] = "normal"
    notify: bool = True
    note: str | None = None
    tags: list[str] = []
    extra: dict[str, Any] = {}


class Edit(BaseModel):
    path: str
    old: str
    new: str


class Command(BaseModel):
    argv: list[str]


class Target(BaseModel):
    target: str


class Question(BaseModel):
    question: str
    choices: list[str] = []


class Reply(BaseModel):
    answer: str


class Receipt(BaseModel):
    paid: int
    reference: str = ""


DIFF = """--- a/{path}
+++ b/{path}
@@ -1,3 +1,3 @@
 keep this line
-{old}
+{new}
 and this one
"""


@dataclass
class Ran:
    """The arguments that the tools really ran with, in order."""

    calls: list[tuple[str, dict[str, Any]]]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [arguments for tool_name, arguments in self.calls if tool_name == name]


def tools_of(ran: Ran) -> tuple[Tool, ...]:
    @tool(effect="once", ask=True)
    async def refund(params: Refund) -> Receipt:
        """Give money back for an order."""
        ran.calls.append(("refund", params.model_dump()))
        return Receipt(paid=params.cents, reference="R-1")

    @tool(
        effect="idempotent",
        ask=True,
        preview=lambda params, _workspace: Preview(kind="diff", text=DIFF.format(**params.model_dump())),
    )
    async def edit_file(params: Edit) -> str:
        """Replace a piece of a file."""
        ran.calls.append(("edit_file", params.model_dump()))
        return "edited"

    @tool(
        effect="once",
        ask=True,
        preview=lambda params, _workspace: Preview.command(*params.argv),
    )
    async def shell(params: Command) -> str:
        """Run a command."""
        ran.calls.append(("shell", params.model_dump()))
        return "\x1b[32mok\x1b[0m"

    @tool(effect="once", ask=True)
    async def deploy(params: Target) -> str:
        """Put a new release live."""
        ran.calls.append(("deploy", params.model_dump()))
        return "live"

    @tool(effect="read", ask=False)
    async def look(params: Target) -> str:
        """Look something up."""
        ran.calls.append(("look", params.model_dump()))
        return f"seen {params.target}"

    ask = interaction_tool(name="ask_person", description="Ask a person.", params=Question, answer=Reply)
    return refund, edit_file, shell, deploy, look, ask


POLICY = Policy(
    rule=[
        Rule(
            name="releases",
            verdict="ask",
            tools=["deploy"],
            reason="Releases are watched.",
            risk="high",
            grace_seconds=0,
        ),
        Rule(name="four-eyes", verdict="ask", tools=["edit_file"], starter_may_decide=False),
        Rule.model_validate(
            {
                "name": "large",
                "verdict": "ask",
                "tools": ["refund"],
                "args": [{"at": "/cents", "op": "gt", "value": 1_000_000}],
                "risk": "high",
                "grace_seconds": 0,
            }
        ),
    ]
)


class WrittenModel:
    """Does what the user's message says, a JSON list of ``[words, tool, raw arguments, …]``, then ends."""

    name = "scripted:written"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        try:
            words, *wanted = json.loads(last.text)
        except ValueError:
            return says("All done.\nThe answer is 42.")
        return says(words, *(call(name, raw) for name, raw in zip(wanted[::2], wanted[1::2], strict=True)))

    async def aclose(self) -> None:
        return None


@dataclass
class Site:
    """The pages under test and their engine. ``state``: of their app. ``world``: what the tools of ``office`` act on.

    ``is_shared``: it serves all tests of the session.
    """

    url: str
    stack: Stack
    ran: Ran
    state: State
    world: World | None = None
    is_shared: bool = False

    async def start(self, name: str, raw: str, words: str = "I will do it.") -> runs.Run:
        return await self.stack.start(json.dumps([words, name, raw]))

    async def gated(self, name: str, raw: str, words: str = "I will do it.") -> requests.Request:
        """Start a run whose first call waits for a person; returns its request."""
        return await self.stack.request(await self.start(name, raw, words))

    async def gated_step(self, *wanted: tuple[str, str]) -> list[requests.Request]:
        """Start a run whose first step has these calls, tool and arguments each, all waiting for a person."""
        run = await self.stack.start(json.dumps(["I will do it.", *(text for pair in wanted for text in pair)]))

        async def opened() -> list[requests.Request] | None:
            async with self.stack.database.read() as conn:
                waiting = await requests.of_run(conn, run.id)
            return waiting if len(waiting) == len(wanted) else None

        return await until(opened, "requests of the step")

    async def lost(self, name: str, raw: str) -> requests.Request:
        """A ``once`` call whose worker died while it ran: it has an execution row, and no result ever came."""
        request = await self.gated(name, raw)
        await self.started(request)
        await self.stack.decide(request, "approve")
        run = await self.run(request)
        return await self.stack.request(run, kind="outcome")

    async def started(self, request: requests.Request) -> None:
        """Write that a worker started the request's call, as its door does; no worker did."""
        async with self.stack.database.write() as conn:
            call = await calls.get(conn, request.run_id, request.tool_call_id)
            assert call is not None
            start = settlement.Start(attempt=1, decision_id=None, by=None, digest=request.digest)
            key = idempotency_key(request.run_id, request.tool_call_id)
            ids = {"run_id": request.run_id, "tool_call_id": request.tool_call_id}
            new = executions.NewExecution(**ids, digest=request.digest, decision_id=None, idempotency_key=key)
            await settlement.tell_started(conn, call, start, writes=executions.begin_writes(new))

    async def run(self, request: requests.Request) -> runs.Run:
        async with self.stack.database.read() as conn:
            run = await runs.get(conn, request.run_id)
        assert run is not None
        return run

    async def now(self, request: requests.Request) -> requests.Request:
        async with self.stack.database.read() as conn:
            stored = await requests.get(conn, request.id)
        assert stored is not None
        return stored

    async def ended(self, request: requests.Request) -> calls.Call:
        """Wait for the end of the request's run; returns the request's call."""
        await self.stack.ended(await self.run(request))
        async with self.stack.database.read() as conn:
            call = await calls.get(conn, request.run_id, request.tool_call_id)
        assert call is not None
        return call

    async def session(self, name: str = "ada") -> str:
        async with self.stack.database.write() as conn:
            return await sessions.begin(
                conn, await people.id_of(conn, name), role="admin" if name == "root" else "operator"
            )


@contextlib.asynccontextmanager
async def site_on(engine: Stack, ran: Ran, gateway: Gateway, *, port: int = 0, **settings: Any) -> AsyncIterator[Site]:
    """Serve the pages of an engine. ``port`` 0: any free one."""
    of_api = ApiSettings(heartbeat_timeout_seconds=2, **settings)
    app = create_app(database=engine.database, gateway=gateway, settings=of_api)
    async with serving(app, port) as url:
        yield Site(url, engine, ran, app.state)


@pytest.fixture(scope="session")
async def site(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('web')}/turngate.db")
    await database.migrate()
    ran = Ran([])
    async with (
        stack(client, database, *tools_of(ran), model=WrittenModel(), policy=POLICY) as engine,
        site_on(engine, ran, Gateway(client)) as site,
    ):
        yield replace(site, is_shared=True)
    await database.close()


@pytest.fixture
async def idle_site(client: Client, sqlite: Database) -> AsyncIterator[Site]:
    """Pages without a worker; run one with ``async with site.stack.worker()``."""
    ran = Ran([])
    async with (
        stack(client, sqlite, *tools_of(ran), model=WrittenModel(), policy=POLICY, working=False) as engine,
        site_on(engine, ran, Gateway(client)) as site,
    ):
        yield site


@pytest.fixture
async def limited_site(client: Client, sqlite: Database) -> AsyncIterator[Site]:
    """Pages of an app whose own model is overloaded for nine minutes; the profile ``quick`` answers."""
    ran, later = Ran([]), {"retryable": True, "retry_after_seconds": 540}
    limited = ListModel(ModelError("come back <b>later</b>", error_class="rate_limited", **later))
    models = Cast(test=limited, quick=ListModel(says("Done.")))
    async with sqlite.write() as conn:
        await agents.publish_model_names(
            conn, Profiles({"quick": Profile(name="quick", model="scripted:q")}), ["scripted"], task_queue="of quick"
        )
    async with (
        stack(client, sqlite, *tools_of(ran), model=models) as engine,
        site_on(engine, ran, Gateway(client)) as site,
    ):
        yield site


@pytest.fixture(scope="session")
async def office(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Pages of an app whose agent has sub-agents, control calls, tools from outside and results too large to display."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('office')}/turngate.db")
    await database.migrate()
    world = World()
    async with (
        stack(client, database, *world.tools(), model=Acting(), limits=LIMITS) as engine,
        site_on(engine, Ran([]), Gateway(client)) as site,
    ):
        yield replace(site, world=world, is_shared=True)
    await database.close()


@pytest.fixture
async def cut_off(site: Site) -> AsyncIterator[Site]:
    """The same store with pages that can't reach Temporal: a real client, and a port where no server listens."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    async with site_on(site.stack, site.ran, Gateway(nowhere)) as unreachable:
        yield unreachable


@pytest.fixture
async def quick_site(site: Site) -> AsyncIterator[Site]:
    """The same store with pages whose event stream sends heartbeats in quick succession."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    async with site_on(site.stack, site.ran, Gateway(nowhere), sse_ping=timedelta(milliseconds=400)) as quick:
        yield quick


@pytest.fixture
async def provider_site(site: Site, tmp_path: Path) -> AsyncIterator[Site]:
    """The same store with pages that people log in to at an OpenID provider."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    port = choose_port()  # the provider knows the address that people come back to
    with running_provider(f"http://127.0.0.1:{port}/login/oidc/callback", tmp_path / "provider.log") as provider:
        oidc = OidcSettings(
            issuer=provider.issuer,
            client_id="turngate",
            client_secret=SECRET,
            scopes=SCOPES,
            operator_values=frozenset({"ops"}),
        )
        async with site_on(site.stack, site.ran, Gateway(nowhere), port=port, oidc=oidc) as at:
            yield at


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("the page tests need Debian's Chromium: apt-get install chromium-headless-shell")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        await started.close()


OpenPage = Callable[..., Awaitable[Page]]


@dataclass
class Windows:
    """The browser's windows on the sites that all tests share, kept between tests, because opening one is costly.

    ``idle``: the parked windows of a context, by its key. ``complaints``: what pages complained of (CSP, errors, console).
    """

    browser: Browser
    contexts: dict[str, BrowserContext] = field(default_factory=dict)
    idle: dict[str, list[Page]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    async def context(self, key: str, at: Site, options: dict[str, Any]) -> BrowserContext:
        if key not in self.contexts:
            context = await self.browser.new_context(base_url=at.url, **options)
            context.set_default_timeout(30_000)
            self.contexts[key] = context
            self.idle[key] = []
        return self.contexts[key]

    async def take(self, key: str, context: BrowserContext) -> Page:
        if idle := self.idle.get(key):
            return idle.pop()
        page = await context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("console", lambda message: self._note(page, message))
        return page

    def _note(self, page: Page, message: ConsoleMessage) -> None:
        # Chromium reports an error status of a page as "Failed to load resource"; tests that want one check it themselves.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(f"{page.url}: {message.text}")

    async def park(self, key: str, page: Page) -> None:
        """Keep a window for the next test. Its page closes its stream, as it does for a browser's way back."""
        await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
        if page.viewport_size != SCREEN:
            await page.set_viewport_size(SCREEN)
        self.idle[key].append(page)

    async def leave(self, site: Site) -> None:
        """Forget the windows on a site that ends with its test."""
        for key in [each for each in self.contexts if site.url in each]:
            del self.idle[key]
            await self.contexts.pop(key).close()


async def log_in(context: BrowserContext, at: Site, operator: str) -> None:
    """Let a person use a context from now on; no one if the name is empty."""
    await context.clear_cookies()
    if operator:
        cookie = {"name": SESSION_COOKIE, "value": await at.session(operator), "url": at.url, "httpOnly": True}
        await context.add_cookies([cookie])


SCREEN = {"width": 1280, "height": 720}


@pytest.fixture(scope="session")
async def windows(browser: Browser) -> Windows:
    return Windows(browser)


@pytest.fixture
async def open_page(windows: Windows, site: Site) -> AsyncIterator[OpenPage]:
    """Open a page as a logged-in operator; after the test, no page may have complained.

    A test that changes its window for good (by an init script, a route) closes it.
    """
    opened: list[tuple[str, Site, Page]] = []
    people: dict[str, str] = {}

    async def open_one(
        path: str = "/", *, operator: str = "ada", at: Site = site, viewport: Any = SCREEN, **options: Any
    ) -> Page:
        # A person has a context of their own beside another's, which a later test gives to someone else.
        numbers = (repr((at.url, sorted(options.items()), number)) for number in itertools.count())
        key = next(each for each in numbers if people.get(each, operator) == operator)
        context = await windows.context(key, at, options)
        if key not in people:
            people[key] = operator
            await log_in(context, at, operator)
        page = await windows.take(key, context)
        opened.append((key, at, page))
        if viewport != SCREEN:
            await page.set_viewport_size(viewport)
        await page.goto(path)
        if options.get("java_script_enabled", True) and operator:
            await page.wait_for_selector("html[data-ready]")
        return page

    yield open_one
    for key, at, page in opened:
        if at.is_shared and not page.is_closed():
            await windows.park(key, page)
    for at in {at.url: at for _key, at, _page in opened if not at.is_shared}.values():
        await windows.leave(at)
    complaints = windows.complaints.copy()
    windows.complaints.clear()
    assert complaints == []


OpenPlain = Callable[..., Awaitable[PlainBrowser]]


@pytest.fixture
async def open_plain(site: Site) -> AsyncIterator[OpenPlain]:
    """Open a page as a logged-in operator in a browser without scripts and styles: over HTTP alone."""
    async with contextlib.AsyncExitStack() as clients:

        async def open_one(path: str = "/", *, operator: str = "ada", at: Site = site) -> PlainBrowser:
            known = {"cookies": {SESSION_COOKIE: await at.session(operator)}, "headers": {"Accept": "text/html"}}
            client = httpx.AsyncClient(base_url=at.url, trust_env=False, timeout=30, **known)
            client.headers["Origin"] = at.url
            return await PlainBrowser(await clients.enter_async_context(client)).open(path)

        yield open_one
