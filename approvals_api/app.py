"""The whole app: JSON API, health, operators' pages and static files, with the loops that run beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from turngate.approvals_api import v1
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.health import store_problem
from turngate.approvals_api.http.dependencies import ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.guards import Guards
from turngate.approvals_api.http.openapi import ApiApp, new_app
from turngate.approvals_api.http.problems import RenderPage, install_problems, problem_response, problems
from turngate.approvals_api.http.public_address import require_free_path
from turngate.approvals_api.http.rate_limits import RateLimits
from turngate.approvals_api.pace import Pace
from turngate.approvals_api.pages import STATIC_DIR
from turngate.approvals_api.pages.policy import playground_routes, script_routes
from turngate.approvals_api.pages.routes import render_error
from turngate.approvals_api.pages.routes import routers as page_routers
from turngate.approvals_api.recovery.redelivery import keep_redelivering
from turngate.approvals_api.requests.precedents import keep_adding
from turngate.approvals_api.retention.apply import keep_retention
from turngate.approvals_api.runs.start import start_recorded
from turngate.approvals_api.schedules.sync import keep_schedules
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ApiSettings, OidcSettings
from turngate.domain.errors import UnavailableError
from turngate.runtime.loop_watch import LoopWatch
from turngate.runtime.traces.export import keep_tracing, name_span
from turngate.store.database import Database
from turngate.wire.playground import Playground

if TYPE_CHECKING:
    from turngate.approvals_api.access.oidc import OidcProvider

__all__ = ["ApiSettings", "create_api_app", "create_app", "documented_app"]

logger = logging.getLogger(__name__)

SWEEP_RETRY_SECONDS: Final = 5.0

health = api_router("health", prefix="")


def create_app(
    *, database: Database, gateway: Gateway, settings: ApiSettings, playground: Playground | None = None
) -> FastAPI:
    """Return the app. The caller opens and closes database and Temporal client; the app's lifespan runs the rest.

    ``playground``: of ``turngate dev``; None: there is no such page.
    """
    app = create_api_app(database=database, gateway=gateway, settings=settings, render_page=render_error)
    app.router.routes.extend(route for router in page_routers for route in router.routes)
    if playground is not None:
        app.state.playground = playground
        app.router.routes.extend((*playground_routes.router.routes, *script_routes.router.routes))
    app.mount("/static", StaticFiles(directory=STATIC_DIR), name="static")
    require_free_path(settings.public_url, (context.path or "/" for context in iter_route_contexts(app.routes)))
    return app


def create_api_app(
    *, database: Database, gateway: Gateway, settings: ApiSettings, render_page: RenderPage | None = None
) -> FastAPI:
    """Return the app without pages: /api/v1, /livez and /readyz.

    ``render_page``: how pages show errors; None when there are no pages.
    """
    feed = EventFeed(database)
    pace = Pace(settings.approval_pace)
    services = Services(database=database, gateway=gateway, feed=feed, settings=settings, pace=pace)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loops = [
            asyncio.create_task(_start_recorded(services), name="start-recorded-runs"),
            asyncio.create_task(keep_redelivering(services), name="redeliver-decisions"),
            asyncio.create_task(
                keep_notifying(
                    database,
                    feed,
                    settings.channels,
                    name_span=None if settings.tracing is None else name_span,
                ),
                name="send-notifications",
            ),
            asyncio.create_task(keep_schedules(services), name="keep-schedules"),
            asyncio.create_task(keep_adding(services), name="add-precedents"),
            asyncio.create_task(keep_tracing(database, settings.tracing), name="export-traces"),
            asyncio.create_task(keep_retention(database, settings.retention), name="apply-retention"),
        ]
        try:
            async with LoopWatch("the API") as app.state.loop_watch:
                yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await feed.close()

    app = new_app(routers=(*v1.routers, health), lifespan=lifespan)
    app.public_url = settings.public_url
    app.state.services = services
    app.state.loop_watch = None  # until the app runs
    app.state.draining = False
    app.state.limits = RateLimits(settings.rate_limits)
    app.state.oidc = None if settings.oidc is None else _oidc_provider(settings.oidc)
    install_problems(app, render_page)
    app.add_middleware(Guards, settings=settings)
    return app


def _oidc_provider(settings: OidcSettings) -> OidcProvider:
    from turngate.approvals_api.access.oidc import OidcProvider  # noqa: PLC0415 - its libraries are slow to import, and few need them

    return OidcProvider(settings)


def documented_app() -> ApiApp:
    """Return the JSON API's routes without anything to serve them from, for the OpenAPI document."""
    return new_app(routers=(*v1.routers, health))


async def _start_recorded(services: Services) -> None:
    """Start the workflows of runs that were recorded before a crash; retry until Temporal and the store answer."""
    while True:
        try:
            tried = await start_recorded(services)
        except UnavailableError as error:
            logger.warning("recorded runs that may not have started are checked again later: %s", error)
            await asyncio.sleep(SWEEP_RETRY_SECONDS)
        else:
            if tried:
                logger.info("made sure that %d run(s) without a step are started", tried)
            return


# Health: unversioned, without a credential, and without details for strangers.


class Liveness(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Readiness(BaseModel):
    """Turngate's dependencies answer, too, and no request has held up the others lately."""

    status: Literal["ready"] = "ready"
    store: bool
    temporal: bool
    loop: bool


@health.get("/livez")
async def livez() -> Liveness:
    """Tell that the process answers."""
    return Liveness()


@health.get(
    "/readyz",
    response_model=Readiness,
    responses=problems(
        {
            503: "`draining`: this process stops, and still serves what is sent to it; "
            "`unavailable`: `store` is false: it cannot be reached, or takes no writes, as on a full disk; or `temporal` is "
            "false, and cannot be reached; or `loop` is false: something held up "
            "all requests of this process within the last 15 seconds, and its log says what"
        }
    ),
)
async def readyz(services: ServicesDep, request: Request) -> Response:
    """Tell whether the store takes writes, Temporal answers, and the process has kept answering and does not stop."""
    if request.app.state.draining:
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "draining", "this process stops: use another one", {})
    problem = await store_problem(services)
    temporal = await services.gateway.ready()
    watch: LoopWatch | None = request.app.state.loop_watch
    answers = {"store": not problem, "temporal": temporal, "loop": watch is None or not watch.has_stalled}
    if all(answers.values()):
        return JSONResponse(Readiness(**answers).model_dump())
    stalled = "" if answers["loop"] else "the event loop stalled: the log says what held it"
    away = "" if temporal else "temporal cannot be reached"
    reason = "; ".join(each for each in (problem, away, stalled) if each)
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason, answers)
