"""Whether traces are exported, and what is in them. OpenTelemetry's own variables say where they go; the SDK reads those.

Imports nothing of OpenTelemetry: it is an extra, and most processes run without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Final, Literal

from turngate.domain.errors import ConfigurationError, MissingExtraError

logger = logging.getLogger(__name__)

Traces = Literal["auto", "on", "off"]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP: Final = "http/protobuf"
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WITH_CONTENT: Final = frozenset({"true", "1", "span_only", "span_and_event"})
"""Values of that variable: its older spelling, and those of the conventions' newer one that put content into spans."""
DELAY: Final = "OTEL_BSP_SCHEDULE_DELAY"
DEFAULT_DELAY: Final = timedelta(seconds=2)
MOST_DELAY: Final = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """How traces are exported.

    ``with_content``: with arguments, results and the model's words. ``with_names``: with the names of people; else each has a
    pseudonym. ``every``: how long spans may wait for others that are sent with them.
    """

    with_content: bool = False
    with_names: bool = False
    every: timedelta = DEFAULT_DELAY


def trace_settings(switch: Traces, environment: Mapping[str, str], *, with_names: bool = False) -> TraceSettings | None:
    """Return how traces are exported; None: they aren't.

    ``switch``: ``auto`` exports them where OpenTelemetry's variables name a collector, and warns where that can't be done.

    Raises:
        ConfigurationError: it is ``on``, and that can't be done.
    """
    if switch == "off" or _lower(environment, "OTEL_SDK_DISABLED") == "true":
        return None
    if _lower(environment, "OTEL_TRACES_EXPORTER") == "none":
        return None
    if switch == "auto" and not any(environment.get(name) for name in ENDPOINTS):
        return None
    problem = _problem(environment)
    if problem is not None and switch == "on":
        raise ConfigurationError(f"TURNGATE_TRACES is on, but {problem}")
    if problem is not None:
        _warn(problem)
        return None
    return TraceSettings(
        with_content=_lower(environment, CONTENT) in WITH_CONTENT, with_names=with_names, every=_delay(environment)
    )


@lru_cache
def _warn(problem: str) -> None:
    """Warn once: API and worker may be one process."""
    logger.warning("No traces are exported: %s. To silence this, set TURNGATE_TRACES=off.", problem)


def _problem(environment: Mapping[str, str]) -> str | None:
    """Return why traces can't be exported, with the fix; None: they can."""
    exporter = _lower(environment, "OTEL_TRACES_EXPORTER") or "otlp"
    if exporter != "otlp":
        return f"OTEL_TRACES_EXPORTER is {exporter!r}: Turngate exports by OTLP. Set it to otlp, or unset it"
    protocol = next((value for name in PROTOCOLS if (value := _lower(environment, name))), HTTP)
    if protocol != HTTP:
        return (
            f"the OTLP protocol is {protocol!r}: Turngate speaks {HTTP}, which collectors take on port 4318. "
            f"Set {PROTOCOLS[0]}={HTTP}, and the endpoint to that port"
        )
    if not _is_installed():
        return str(MissingExtraError("OpenTelemetry", "telemetry"))
    return None


def _is_installed() -> bool:
    try:
        return (
            find_spec("opentelemetry.sdk") is not None
            and find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        )
    except ModuleNotFoundError:  # of a parent package
        return False


def _delay(environment: Mapping[str, str]) -> timedelta:
    text = environment.get(DELAY, "")
    return min(timedelta(milliseconds=int(text)), MOST_DELAY) if text.isdecimal() and int(text) else DEFAULT_DELAY


def _lower(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, "").strip().lower()
