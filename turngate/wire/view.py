"""What every answer of the API is: a frozen model, and one page of a list."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class View(BaseModel):
    """Something the API shows: frozen, and made from any object with the same attributes."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(View, Generic[Item]):
    """One page of a list. ``next_cursor``: where the next page begins; None on the last one."""

    items: list[Item]
    next_cursor: str | None = None
