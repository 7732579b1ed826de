"""The base of every response of the API, and one page of a list."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class View(BaseModel):
    """The base of what the API sends: frozen, and built from any object with the same attributes."""

    model_config = ConfigDict(frozen=True, from_attributes=True, defer_build=True)  # a client reads few of them


class Page(View, Generic[Item]):
    """One page of a list. ``next_cursor``: where the next page begins; None on the last page."""

    items: list[Item]
    next_cursor: str | None = None
