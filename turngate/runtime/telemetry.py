"""Logging: every line, ours and the libraries', goes through one pipeline that removes secrets.

``logging`` and ``structlog`` may both be used; both end in one handler on stderr. Run uvicorn with ``log_config=None``,
or it puts its own handlers back.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Final

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from turngate.domain.text.hidden_text import marked_text
from turngate.domain.tools.secrets import mask_text
from turngate.runtime.log_ids import add_ids
from turngate.runtime.settings import LogFormat, LogLevel

REDACTED: Final = "[redacted]"
SECRET_NAME: Final = re.compile(
    r"(?i)(^|_|-)(authorization|cookie|passw(or)?d|secret|credentials?|api[_-]?key|tokens?)$"
)
SECRET_TEXT: Final = (
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(?P<kept>://[^/\s:@]*:)[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?P<kept>[?&](?:[\w-]*token|code|state|key|api_key|password|secret)=)[^&\s\"'#]+"),
)
"""An Authorization header, a URL's password, a query's token (login links, in access logs): in a log whatever they look like.

The rest is what people don't see either (:mod:`turngate.domain.text.credentials`).
"""

_hidden: ContextVar[frozenset[str]] = ContextVar("hidden", default=frozenset())

QUIET: Final = ("httpx", "httpcore", "urllib3", "asyncio", "sqlalchemy", "alembic", "mcp")
"""Libraries whose INFO lines repeat our own events (and contain URLs)."""
OWN_HANDLERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "temporalio")


def configure_logging(level: LogLevel = "info", log_format: LogFormat = "console") -> None:
    """Send all logging of this process to stderr, as lines for people or as JSON. Safe to repeat; the last call counts."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                redact,
                *([] if log_format == "json" else [make_visible]),
                _renderer(log_format),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in OWN_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # The SDK writes what an activity failed with, words of people and tools among it. Ours are logged by their ids.
    logging.getLogger("temporalio.activity").setLevel(max(logging.ERROR, root.level))
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # the report about a line that can't be written quotes it as it is


def hide(values: Collection[str]) -> None:
    """Blank these texts out, too, in what the current task and those that it starts write to the log from here on."""
    _hidden.set(_hidden.get().union(values))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blank out secrets, which are recognised by their key and by what they look like (structlog processor)."""
    event.pop("color_message", None)  # uvicorn's second copy of its message, with terminal codes
    event.pop("temporal_log", None)  # the SDK core's object for the line, which prints as an address
    return {name: _clean(name, value) for name, value in event.items()}


def make_visible(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Show hidden characters, which a terminal would obey, as markers; only a traceback has lines (structlog processor)."""
    return {name: _visible(name, value) for name, value in event.items()}


def _visible(name: str, value: object) -> object:
    if name in {"exception", "stack"}:
        return "\n".join(marked_text(line) for line in str(value).split("\n"))
    return value if isinstance(value, bool | int | float | None) else marked_text(value)


def redact_text(text: str) -> str:
    """Return the text with everything that looks like a secret blanked out."""
    for pattern in SECRET_TEXT:
        text = pattern.sub(rf"\g<kept>{REDACTED}", text)
    return mask_text(text, _hidden.get(), mark=REDACTED)


def _clean(name: str, value: object) -> object:
    match value:
        case bool() | int() | float() | None:
            return value  # A number under such a name is a count: max_tokens.
        case _ if SECRET_NAME.search(name):
            return REDACTED
        case str():
            return redact_text(value)
        case Mapping():
            return {key: _clean(str(key), inner) for key, inner in value.items()}
        case list() | tuple():
            return [_clean("", inner) for inner in value]
        case _:
            return redact_text(str(value))


def _renderer(log_format: LogFormat) -> Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
