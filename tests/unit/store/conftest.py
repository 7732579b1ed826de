"""Rows that most store tests need: a conversation, and live runs in conversations of their own."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest
from support.stores.stored_requests import live_run

from turngate.store.database import Database
from turngate.store.runs import runs

NewRun = Callable[..., Awaitable[runs.Run]]


@pytest.fixture(autouse=True)
def no_names(own_names: None) -> None:
    """Each test has a store of its own."""


@pytest.fixture
def new_run(database: Database) -> NewRun:
    """Creates live runs, each in a conversation of its own unless one is named."""
    number = itertools.count(1)

    async def make(conversation_id: str | None = None, **options: str | None) -> runs.Run:
        async with database.write() as conn:
            return await live_run(conn, f"run_{next(number)}", conversation_id=conversation_id, **options)

    return make


@pytest.fixture
async def run(new_run: NewRun) -> runs.Run:
    """One live run."""
    return await new_run()
