"""The operators' pages: server-rendered, working without JavaScript. ``routes.router`` and ``STATIC_DIR`` are mounted by the app."""

from pathlib import Path

STATIC_DIR = Path(__file__).parent / "static"
"""Served at ``/static``: one stylesheet and one ES module, no build step."""
