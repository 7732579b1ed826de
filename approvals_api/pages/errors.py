"""The HTML error page: the same words as the API's problem, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from approvals_api.pages.templating import Frame, render


def render_error(
    request: Request, status: int, title: str, detail: str, details: Mapping[str, Any] | None = None
) -> HTMLResponse:
    """Return the page for an error. Needs neither the store nor a login, because either may be what failed.

    ``details``: of the error; complaints under ``errors`` are listed, the rest is for machines.
    """
    complaints = (details or {}).get("errors")
    return render(
        "error.html",
        frame=Frame(),
        status=status,
        code=status,
        title=title,
        detail=detail,
        complaints=complaints if isinstance(complaints, list) else [],
        path=request.url.path,
    )
