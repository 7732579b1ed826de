"""Saved views of the inbox."""

from __future__ import annotations

from turngate.wire.view import View


class SavedViewItem(View):
    """A filter of the inbox that a person saved. ``query``: as it stands in the inbox's URL."""

    name: str
    query: str
    created_at: str
