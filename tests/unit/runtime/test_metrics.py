"""Metrics apart from an engine: labels have a bound, and the port answers whatever the loop does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator

import pytest
from support.project.scrapes import Scrape, get

from turngate.cli.api_server import listen
from turngate.cli.parts.metrics import metrics_listener
from turngate.domain.errors import ConfigurationError
from turngate.runtime.metrics import port as metrics_port
from turngate.runtime.metrics import scraped
from turngate.runtime.metrics.counted import MOST_TOOLS, Counted
from turngate.runtime.metrics.labels import OTHER, BoundedLabel
from turngate.runtime.metrics.port import MetricsPort
from turngate.runtime.metrics.scraped import Scraped, gauge
from turngate.runtime.settings import Settings

HOSTILE = ('pay"} 1\n# HELP x\nfake{a="', "\ud800", "", " ", "naïve", "a" * 101, "\u202epay")


@pytest.fixture
def listener() -> socket.socket:
    return listen("127.0.0.1", 0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_label_has_a_bound() -> None:
    """The first names get values, all others share one, and those that are no names never take a place."""
    label = BoundedLabel(2)
    assert [label.of(name) for name in (*HOSTILE, "a", "b", "c", "a")] == [OTHER] * len(HOSTILE) + [
        "a",
        "b",
        OTHER,
        "a",
    ]


def test_any_number_of_tools_is_a_bounded_number_of_series() -> None:
    """Thousands of names make a hundred series; those of the app keep their places, as 0 before their first call."""
    counted = Counted()
    counted.expect(tools=["pay"], models=["openai:gpt"])
    starts = [("execution.started", {"tool": name}) for name in (*HOSTILE, *(f"t{n}" for n in range(5_000)))]
    counted.count([*starts, ("execution.started", {"tool": "pay"})])
    scrape = Scrape.of(counted.text().decode())
    assert sum(name == "turngate_executions_started_total" for name, _labels in scrape.samples) == MOST_TOOLS + 1
    assert scrape.total("turngate_executions_started_total", tool="pay") == 1
    assert scrape.total("turngate_executions_started_total") == 5_001 + len(HOSTILE)


def test_a_fact_that_cannot_be_counted_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """What is counted has been committed: a payload without a field is logged once, and nothing is raised."""
    counted = Counted()
    for _ in range(3):
        counted.count([("execution.finished", {})])
    assert len(caplog.records) == 1


def test_gauges_of_strange_names_are_one_series() -> None:
    """Two queues whose names can't be labels are one series, with the larger value: a name twice would spoil the scrape."""
    metric = gauge("turngate_x", "X.", {("a b",): 1.0, ("c\nd",): 3.0, ("ok",): 2.0}, ("task_queue",))
    assert {sample.labels["task_queue"]: sample.value for sample in metric.samples} == {OTHER: 3.0, "ok": 2.0}


def test_the_port_serves_metrics_to_this_machine_only(listener: socket.socket) -> None:
    """/metrics under a loopback name; another path is 404, another name (DNS rebinding) 421, another method 501."""
    number = listener.getsockname()[1]
    with MetricsPort(listener, lambda: b"turngate_x 1\n"):
        assert get(number) == (200, "turngate_x 1\n")
        for headers, path, status in (({"Host": "evil.example"}, "/metrics", 421), ({}, "/", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(number, path, **headers)
            assert refused.value.code == status
    with pytest.raises(urllib.error.URLError):
        get(number)


def test_clients_that_send_nothing_do_not_keep_others_out_for_long(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections are a bounded number, each for a bounded time."""
    monkeypatch.setattr(metrics_port._Answer, "timeout", 0.3)
    number = listener.getsockname()[1]
    with MetricsPort(listener, lambda: b""):
        silent = [socket.create_connection(("127.0.0.1", number)) for _ in range(metrics_port.MOST_AT_ONCE + 4)]
        deadline = time.monotonic() + 10
        while True:
            try:
                assert get(number) == (200, "")
                break
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        for each in silent:
            each.close()


def test_a_process_takes_a_port_over_from_another_without_a_gap(listener: socket.socket) -> None:
    """Two that share a socket answer each client once, whichever takes it; when one ends, the other answers all."""
    number = listener.getsockname()[1]
    with MetricsPort(listener.dup(), lambda: b"new"):
        with MetricsPort(listener, lambda: b"old"):
            assert {get(number)[1] for _ in range(20)} <= {"old", "new"}
        assert {get(number)[1] for _ in range(5)} == {"new"}


def test_a_port_that_is_taken_is_an_error_that_names_its_option(listener: socket.socket) -> None:
    """The error at the start says which port, and which option takes another one."""
    with pytest.raises(ConfigurationError, match=r"is taken.*--metrics-port"):
        listen("127.0.0.1", listener.getsockname()[1], option="--metrics-port", host_setting="TURNGATE_METRICS_HOST")
    with pytest.raises(ConfigurationError, match=r"no address to listen on.*set TURNGATE_METRICS_HOST"):
        listen("no such host", 0, option="--metrics-port", host_setting="TURNGATE_METRICS_HOST")
    with pytest.raises(ConfigurationError, match="2 ports from 65535: take a lower one with --metrics-port"):
        metrics_listener(Settings(metrics_port=65_535), after=1)
    listener.close()


def test_a_loop_that_hangs_is_seen_from_outside(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop hangs, the delay grows from scrape to scrape and nothing else is shown; afterwards all is back."""
    monkeypatch.setattr(scraped, "READ_SECONDS", -0.8)
    monkeypatch.setattr(scraped, "FRESH_SECONDS", 0.0)

    async def read() -> list[scraped.Metric]:
        return [gauge("turngate_x", "X.", {(): 1.0})]

    collector = Scraped(loop, read)
    assert [each.name for each in collector.collect()] == ["turngate_event_loop_delay_seconds", "turngate_x"]
    loop.call_soon_threadsafe(time.sleep, 1.0)
    delays = []
    for _ in range(2):
        (only,) = collector.collect()
        delays.append(only.samples[0].value)
    assert 0.1 < delays[0] < delays[1]
    deadline = time.monotonic() + 10
    while len(list(collector.collect())) == 1:
        assert time.monotonic() < deadline
    assert len(list(collector.collect())) == 2
