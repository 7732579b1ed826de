"""The URL of an SQLite file, and the file of such a URL: any path survives both ways.

Must not import SQLAlchemy, which is slow to import. Before version 2.1, that took a URL's path as it is; it decodes it since.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes


def sqlite_url(file: Path) -> str:
    """Return the URL of a file, whose name may have ``#``, ``?``, ``%`` and bytes that are no text."""
    return f"sqlite:///{quote(os.fsencode(file))}"


def sqlite_file(url: str) -> Path:
    """Return the file of a URL; ``Path(".")`` if it names none. ``?`` and ``%`` of a path are written ``%3F`` and ``%25``."""
    path = url.partition(":///")[2].partition("?")[0]
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(path))))
