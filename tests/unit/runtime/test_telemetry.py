"""Logging: one pipeline, no secrets."""

import json
import logging
import subprocess
import sys
import warnings

import pytest
import structlog
from pydantic import SecretStr

from turngate.domain.text.hidden_text import is_hidden
from turngate.runtime.telemetry import configure_logging, redact_text


@pytest.fixture(autouse=True)
def _restore_logging():
    configured = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in list(logging.root.manager.loggerDict)}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    logging.captureWarnings(capture=False)
    structlog.configure(**configured)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_both_kinds_of_logger_give_the_same_lines(capsys: pytest.CaptureFixture[str]):
    """Lines of structlog and of logging have time, level, logger and their fields, on stderr."""
    configure_logging("info", "json")
    structlog.get_logger("ours").info("run started", run_id="r1")
    logging.getLogger("theirs").warning("retry %s", 2, extra={"run_id": "r1"})
    ours, theirs = lines(capsys)
    assert ours["timestamp"].endswith("Z")
    assert {**ours, "timestamp": ""} == {
        "event": "run started",
        "level": "info",
        "logger": "ours",
        "run_id": "r1",
        "timestamp": "",
    }
    assert (theirs["event"], theirs["level"], theirs["run_id"]) == ("retry 2", "warning", "r1")


def test_level_holds_for_both(capsys: pytest.CaptureFixture[str]):
    """Below the level nothing is written; the last configuration counts, without doubled lines."""
    configure_logging("debug", "json")
    configure_logging("warning", "json")
    structlog.get_logger("ours").info("no")
    logging.getLogger("theirs").info("no")
    logging.getLogger("theirs").warning("yes")
    assert [line["event"] for line in lines(capsys)] == ["yes"]


def test_uvicorn_and_temporal_go_the_same_way(capsys: pytest.CaptureFixture[str]):
    """Their own handlers are taken away and their lines pass ours, a login link's token blanked."""
    access_log = logging.getLogger("uvicorn.access")
    access_log.setLevel(logging.NOTSET)  # a server that another test ran in this process may have raised it
    access_log.disabled = False
    access_log.addHandler(logging.StreamHandler(sys.stderr))
    access_log.propagate = False
    configure_logging("info", "json")
    logging.getLogger("uvicorn.access").info(
        '%s - "GET %s HTTP/1.1" %d', "127.0.0.1", "/login?token=hunter2&next=/", 200
    )
    logging.getLogger("temporalio.activity").warning("failed: what a tool said")  # ours is logged by its id
    logging.getLogger("temporalio.activity").error("slow", extra={"temporal_activity": {"attempt": 2}})
    access, activity = lines(capsys)
    assert access["event"] == '127.0.0.1 - "GET /login?token=[redacted]&next=/ HTTP/1.1" 200'
    assert activity["temporal_activity"] == {"attempt": 2}


def test_secrets_are_blanked_by_name(capsys: pytest.CaptureFixture[str]):
    """A value logged under a secret's name is not written, at any depth; names that only sound alike are."""
    configure_logging("info", "json")
    structlog.get_logger("ours").info(
        "call",
        api_key="hunter2",
        headers={"Authorization": "hunter2", "Cookie": "hunter2", "Accept": "text/html"},
        attempts=[{"password": "hunter2"}],
        key=SecretStr("hunter2"),
        input_tokens=12,
        token_count=3,
        tokenizer="o200k",
    )
    captured = capsys.readouterr().err
    assert "hunter2" not in captured
    line = json.loads(captured)
    assert line["headers"]["Accept"] == "text/html"
    assert (line["token_count"], line["tokenizer"], line["input_tokens"]) == (3, "o200k", 12)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh.ijk-123", "Authorization: Bearer [redacted]"),
        ("postgresql://turngate:hunter2@db:5432/x", "postgresql://turngate:[redacted]@db:5432/x"),
        ("GET /x?a=1&access_token=hunter2 HTTP/1.1", "GET /x?a=1&access_token=[redacted] HTTP/1.1"),
        ("key sk-proj-0123456789abcdefghij!", "key [redacted]!"),
        (
            "the bearer of news; http://127.0.0.1:8321/runs?cursor=3",
            "the bearer of news; http://127.0.0.1:8321/runs?cursor=3",
        ),
    ],
)
def test_secrets_are_blanked_by_shape(text: str, clean: str):
    """What looks like a secret is blanked inside any text, and the rest of the text stays."""
    assert redact_text(text) == clean


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_tracebacks_are_cleaned(capsys: pytest.CaptureFixture[str], log_format: str):
    """An exception's text passes the same filter."""
    configure_logging("info", log_format)

    def connect() -> None:
        raise ValueError("cannot connect to postgresql://u:hunter2@db/x")

    try:
        connect()
    except ValueError:
        logging.getLogger("theirs").exception("failed")
        structlog.get_logger("ours").exception("failed")
    written = capsys.readouterr().err
    assert written.count("ValueError: cannot connect to postgresql://u:[redacted]@db/x") == 2
    assert "hunter2" not in written


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_line_has_a_character_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str], log_format: str):
    """Control, C1 and bidi characters of a message, a field or an error are markers or escapes; a message has one line."""
    hostile = "a\x1b[2Jb\x9b31mc\u202ed\u200be\nFAKE line"
    configure_logging("info", log_format)
    logging.getLogger("theirs").warning(hostile)

    def fail() -> None:
        raise ValueError(hostile)

    try:
        fail()
    except ValueError:
        structlog.get_logger("ours").exception("failed", field=hostile, several=[hostile])
    written = capsys.readouterr().err
    assert [char for char in written if is_hidden(char)] == []
    assert written.count("FAKE line") == 4
    assert sum(line.startswith("FAKE") for line in written.splitlines()) == (1 if log_format == "console" else 0)


def test_warnings_are_logged(capsys: pytest.CaptureFixture[str]):
    """Python's warnings go the same way."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        configure_logging("info", "json")
        warnings.warn("old", stacklevel=1)
    assert [line["logger"] for line in lines(capsys)] == ["py.warnings"]


def test_importing_runtime_configures_nothing():
    """Logging is the composition root's choice: an import changes no handler."""
    code = "import turngate.runtime.telemetry, logging; assert logging.getLogger().handlers == []"
    subprocess.run([sys.executable, "-c", code], check=True)
