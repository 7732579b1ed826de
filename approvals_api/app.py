"""The whole app: JSON API, operators' pages and static files. Composition only."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from approvals_api.api_app import create_api_app
from approvals_api.gateway.client import Gateway
from approvals_api.pages.errors import render_error
from approvals_api.pages.routes import router as pages_router
from approvals_api.settings import ApiSettings
from turngate.store.database import Database

__all__ = ["ApiSettings", "create_app"]

STATIC_DIR = Path(__file__).parent / "pages" / "static"


def create_app(*, database: Database, gateway: Gateway, settings: ApiSettings) -> FastAPI:
    """Return the app. The caller opens and closes database and Temporal client; the app's lifespan runs the rest."""
    app = create_api_app(database=database, gateway=gateway, settings=settings, render_page=render_error)
    app.include_router(pages_router)
    app.mount("/static", StaticFiles(directory=STATIC_DIR), name="static")
    return app
