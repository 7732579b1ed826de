"""For builders' tests: run an app inside a test, and check it against recorded runs (ADR 0009).

    from turngate.testing import replay_fixture, running_app

:func:`running_app` starts the real engine in the test's process. :func:`replay_fixture` runs an app on it against a fixture,
which is a run that ``turngate export`` wrote: the model, the decisions and the expiries are the recorded ones.
"""

from __future__ import annotations

from turngate.testing.engine import Decided, RunningApp, running_app
from turngate.testing.harness import OPERATOR, STARTER
from turngate.testing.replay import replay_fixture
from turngate.testing.report import Divergence, ReplayReport

__all__ = [
    "OPERATOR",
    "STARTER",
    "Decided",
    "Divergence",
    "ReplayReport",
    "RunningApp",
    "replay_fixture",
    "running_app",
]
