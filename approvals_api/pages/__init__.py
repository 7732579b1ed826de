"""The operators' pages: server-rendered, working without JavaScript. The app mounts ``routes.router`` and STATIC_DIR."""

from pathlib import Path

STATIC_DIR = Path(__file__).parent / "static"
"""Served at ``/static``: one stylesheet and one ES module, no build step."""
