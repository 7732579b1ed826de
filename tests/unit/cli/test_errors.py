import errno

import pytest
import typer

from turngate.cli import terminal
from turngate.cli.errors import reported
from turngate.domain.errors import ConfigurationError, NotFoundError


def code_of(error: BaseException) -> int:
    with pytest.raises(typer.Exit) as stopped, reported():
        raise error
    return stopped.value.exit_code


@pytest.fixture(autouse=True)
def fresh_consoles():
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    yield
    terminal.out.cache_clear()
    terminal.err.cache_clear()


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ConfigurationError("port 1 is taken: use --port"), 2, "error: port 1 is taken: use --port\n"),
        (NotFoundError("there is no run 'x'"), 1, "error: there is no run 'x'\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: the output cannot be written: No space left on device\n",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_its_message_alone_and_an_exit_code(
    error: BaseException, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 for a wrong configuration, 1 for other errors, and what a shell says of SIGINT and SIGPIPE. A full disk is no bug."""
    assert code_of(error) == code
    assert capsys.readouterr() == ("", printed)


def test_a_bug_is_one_message_and_asks_to_be_reported(capsys):
    """A traceback is printed only on request."""
    assert code_of(ZeroDivisionError("oops")) == 1
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in printed
    assert "Traceback" not in printed


def test_debug_shows_the_traceback(capsys, monkeypatch):
    """The log level debug prints tracebacks."""
    monkeypatch.setenv("TURNGATE_LOG_LEVEL", "debug")
    assert code_of(ZeroDivisionError("oops")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_cannot_carry_escape_sequences(capsys):
    """Error texts quote what others sent."""
    code_of(NotFoundError("no run '\x1b[2J'"))
    assert "\x1b" not in capsys.readouterr().err
