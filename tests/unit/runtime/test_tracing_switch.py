"""Whether traces are exported: OpenTelemetry's own variables decide, and a switch that can't be followed says why."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.runtime.traces.switch import TraceSettings, trace_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def test_traces_are_off_until_a_collector_is_named() -> None:
    """Nothing is exported by default, nor where OpenTelemetry is switched off."""
    assert trace_settings("auto", {}) is None
    assert trace_settings("auto", ENDPOINT) == TraceSettings()
    assert trace_settings("on", {}) == TraceSettings(), "to the SDK's own default, this machine's port 4318"
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert trace_settings("on", {**ENDPOINT, **off}) is None
    assert trace_settings("off", ENDPOINT) is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("", False), ("false", False), ("NO_CONTENT", False), ("EVENT_ONLY", False), ("true", True), ("SPAN_ONLY", True)],
)
def test_content_needs_its_conventional_variable(value: str, *, wanted: bool) -> None:
    """Both of its spellings; content for events only is none for spans."""
    settings = trace_settings("auto", {**ENDPOINT, CONTENT: value})
    assert settings is not None
    assert settings.with_content is wanted


@pytest.mark.parametrize(("value", "every"), [("500", 0.5), ("0", 2), ("-1", 2), ("soon", 2), ("99999999", 60)])
def test_the_delay_is_bounded(value: str, every: float) -> None:
    """OTEL_BSP_SCHEDULE_DELAY, in milliseconds; what is no number counts as not set."""
    settings = trace_settings("auto", {**ENDPOINT, "OTEL_BSP_SCHEDULE_DELAY": value})
    assert settings is not None
    assert settings.every == timedelta(seconds=every)


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "Set it to otlp"),
    ],
)
def test_what_cannot_be_done_is_an_error_when_it_is_on_and_a_warning_otherwise(
    environment: dict[str, str], fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Variables that are meant for other programs stop no server; the switch does, with the fix."""
    assert trace_settings("auto", {**ENDPOINT, **environment}) is None
    assert fix in caplog.text
    with pytest.raises(ConfigurationError, match="TURNGATE_TRACES is on, but") as refused:
        trace_settings("on", environment)
    assert fix in refused.value.message


def test_without_the_extra_the_switch_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation without it: its packages aren't found."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigurationError, match="the extra 'telemetry' is not installed"):
        trace_settings("on", ENDPOINT)
