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


def test_a_wrong_configuration_exits_2_with_its_message_alone(capsys):
    """The person reads what is wrong and how to fix it, and no traceback."""
    assert code_of(ConfigurationError("port 1 is taken: use --port")) == 2
    assert capsys.readouterr().err == "error: port 1 is taken: use --port\n"


def test_every_other_error_of_ours_exits_1(capsys):
    """An error at run time has another exit code than a wrong command."""
    assert code_of(NotFoundError("there is no run 'x'")) == 1
    assert "error: there is no run 'x'" in capsys.readouterr().err


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


def test_ctrl_c_exits_130_without_a_word(capsys):
    """The shell's own convention: 128 + SIGINT."""
    assert code_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_an_error_cannot_carry_escape_sequences(capsys):
    """Error texts quote what others sent."""
    code_of(NotFoundError("no run '\x1b[2J'"))
    assert "\x1b" not in capsys.readouterr().err


def test_a_reader_that_went_away_ends_it_as_the_signal_would(capsys: pytest.CaptureFixture[str]) -> None:
    """`turngate runs | head` is not an error to talk about; the exit code is that of a program that SIGPIPE ended."""
    with pytest.raises(typer.Exit) as left, reported():
        raise BrokenPipeError(32, "Broken pipe")
    assert left.value.exit_code == 141
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_not_our_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """The user reads what is wrong, and is not asked to report a bug."""
    assert code_of(OSError(errno.ENOSPC, "No space left on device")) == 1
    assert capsys.readouterr().err == "error: the output cannot be written: No space left on device\n"
