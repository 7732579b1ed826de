"""The whole app: JSON API, operators' pages and static files. Composition only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from approvals_api.access.oidc import OidcProvider
from approvals_api.events.feed import EventFeed
from approvals_api.events.notifier import keep_notifying
from approvals_api.gateway.client import Gateway
from approvals_api.http.guards import Guards
from approvals_api.http.openapi import new_app
from approvals_api.http.problems import RenderPage, install_problems
from approvals_api.http.rate_limits import RateLimits
from approvals_api.pages.routes import render_error
from approvals_api.pages.routes import router as pages_router
from approvals_api.recovery.redelivery import keep_redelivering
from approvals_api.runs.start import start_recorded
from approvals_api.schedules.sync import keep_schedules
from approvals_api.services import Services
from approvals_api.settings import ApiSettings
from turngate.domain.errors import UnavailableError
from turngate.store.database import Database

# The JSON API as an app of its own; :mod:`approvals_api.app` adds the pages.


logger = logging.getLogger(__name__)

SWEEP_RETRY_SECONDS = 5.0


def create_api_app(
    *, database: Database, gateway: Gateway, settings: ApiSettings, render_page: RenderPage | None = None
) -> FastAPI:
    """Return the app with /api/v1, /livez and /readyz. The caller opens and closes database and Temporal client.

    ``render_page``: how pages show errors; None when there are no pages.
    """
    feed = EventFeed(database)
    services = Services(
        database=database,
        gateway=gateway,
        feed=feed,
        settings=settings,
        limits=RateLimits(settings.rate_limits),
        oidc=None if settings.oidc is None else OidcProvider(settings.oidc),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        sweeps = [
            asyncio.create_task(_finish_starting(services), name="start-recorded-runs"),
            asyncio.create_task(keep_redelivering(services), name="redeliver-decisions"),
            asyncio.create_task(keep_notifying(services), name="send-notifications"),
            asyncio.create_task(keep_schedules(services), name="keep-schedules"),
        ]
        try:
            yield
        finally:
            for sweep in sweeps:
                sweep.cancel()
            await asyncio.gather(*sweeps, return_exceptions=True)
            await feed.close()

    app = new_app(lifespan=lifespan)
    app.state.services = services
    install_problems(app, render_page)
    app.add_middleware(Guards, settings=settings)
    return app


async def _finish_starting(services: Services) -> None:
    """Start the workflows of runs that a crash left recorded only; tried until Temporal and the store answer."""
    while True:
        try:
            tried = await start_recorded(services)
        except UnavailableError as error:
            logger.warning("runs that were recorded but perhaps not started are looked at later: %s", error)
            await asyncio.sleep(SWEEP_RETRY_SECONDS)
        else:
            if tried:
                logger.info("made sure that %d run(s) without a step are started", tried)
            return


__all__ = ["ApiSettings", "create_app"]

STATIC_DIR = Path(__file__).parent / "pages" / "static"


def create_app(*, database: Database, gateway: Gateway, settings: ApiSettings) -> FastAPI:
    """Return the app. The caller opens and closes database and Temporal client; the app's lifespan runs the rest."""
    app = create_api_app(database=database, gateway=gateway, settings=settings, render_page=render_error)
    app.include_router(pages_router)
    app.mount("/static", StaticFiles(directory=STATIC_DIR), name="static")
    return app
