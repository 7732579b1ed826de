"""A pytest plugin: the fixture ``turngate_replay`` runs an app against a run that ``turngate export`` wrote down.

    async def test_a_refund_goes_as_it_went(turngate_replay):
        report = await turngate_replay(app, "fixtures/refund.json")
        report.check()

    def test_the_same_without_async(turngate_replay):
        turngate_replay.run(app, "fixtures/refund.json").check()

Pytest loads it by its entry point (``turngate``); only pytest may import it. The engine is imported when a test asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import pytest

if TYPE_CHECKING:
    from turngate.domain.agents.app import App
    from turngate.domain.runs.fixtures import Fixture
    from turngate.domain.tools.declared_parts import Handler
    from turngate.testing import ReplayReport


class ReplayOptions(TypedDict, total=False):
    """What :func:`turngate.testing.replay_fixture` takes beside app and fixture."""

    handlers: Mapping[str, Handler] | None
    workspace: Path | None
    any_result_of: Collection[str]
    base: Path | None
    deadline: float


class Replay:
    """Replays fixtures, each in a directory of its own. Paths are relative to the test's file."""

    def __init__(self, directory: Path, beside: Path) -> None:
        self._directory = directory
        self._beside = beside
        self._made = 0

    async def __call__(self, app: App, fixture: Fixture | str | Path, **options: Unpack[ReplayOptions]) -> ReplayReport:
        """Run the app against a fixture and return what differs; ``report.check()`` fails the test for it."""
        from turngate.testing import replay_fixture  # noqa: PLC0415 - the engine takes a second to import

        self._made += 1
        own = self._directory / f"turngate-replay-{self._made}"
        own.mkdir()
        found = self._beside / fixture if isinstance(fixture, str | Path) else fixture
        return await replay_fixture(app, found, own, **options)

    def run(self, app: App, fixture: Fixture | str | Path, **options: Unpack[ReplayOptions]) -> ReplayReport:
        """Do the same in a test without ``async``, on an event loop of its own."""
        return asyncio.run(self(app, fixture, **options))


@pytest.fixture
def turngate_replay(request: pytest.FixtureRequest, tmp_path: Path) -> Replay:
    """Give the way to replay what `turngate export` wrote down: await it with an app and a file, and check the report."""
    return Replay(tmp_path, request.path.parent)
