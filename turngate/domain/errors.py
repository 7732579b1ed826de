"""Every error Turngate raises on purpose, and nothing else.

    TurngateError
    ├── ConfigurationError        the app, policy or settings are wrong: the start is refused
    │   ├── DuplicateToolNameError
    │   ├── MissingExtraError
    │   ├── MissingServicesError
    │   ├── UnfinishedRestoreError
    │   └── UnknownSchemaError
    ├── ModelError                the model's provider answered badly or not at all
    ├── NotFoundError             no such run, request, conversation
    ├── ConflictError             the thing exists, but is not in a state that allows this
    ├── GoneError                 it ended with its run
    ├── ForbiddenError            this person or credential may not do it
    ├── InvalidInputError         the input does not fit; nothing was changed
    ├── TooManyRequestsError      this one asks too often; try again a little later
    └── UnavailableError          Temporal or the store is away; try again

Each carries a stable ``code`` for machines, a message that says the fix, and ``details`` (JSON) for programs.
Must import nothing but the standard library.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal


class TurngateError(Exception):
    """Root of the tree; catching it catches everything Turngate means to raise."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code or self.code
        self.details = details


class ConfigurationError(TurngateError):
    """The app, its policy or its settings are wrong; the process must not start."""

    code = "configuration"


class DuplicateToolNameError(ConfigurationError):
    """Two sources of one toolkit declare the same tool name."""

    code = "duplicate_tool_name"

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f"tool {name!r} is declared twice: by {first} and by {second}. "
            f"Rename one, or put one toolkit under a prefix with Toolkit.namespace('prefix', kit).",
            tool=name,
            sources=[first, second],
        )


class MissingExtraError(ConfigurationError):
    """An optional part of Turngate is used, and the packages of its extra are not installed.

    Args:
        feature: the part, as the message begins with it: "MCP servers".
        extra: its name in pyproject.toml: "mcp".
        instead: what else would do, as a clause: "set TEMPORAL_ADDRESS to a server that runs elsewhere".
        details: as for every error.
    """

    def __init__(self, feature: str, extra: str, *, instead: str = "", **details: Any) -> None:
        # No index has Turngate, so which command is right depends on where it was installed from.
        super().__init__(
            f"{feature} cannot be used: the extra '{extra}' is not installed. Install Turngate again with it: "
            f"pip install -e '.[{extra}]' in a checkout, pip install 'FILE.whl[{extra}]' from a wheel "
            f"(docs/howto/install.md){'. Or ' if instead else ''}{instead}",
            extra=extra,
            **details,
        )


class MissingServicesError(ConfigurationError):
    """Tools ask for services that the app's registry does not hold."""

    code = "missing_services"

    def __init__(self, missing: list[tuple[str, str, str]]) -> None:
        """Take tools, the services that they lack, and where the tools are declared (empty: not known)."""
        lines = "; ".join(
            f"tool {tool!r} needs {service}{f' ({place})' if place else ''}" for tool, service, place in missing
        )
        super().__init__(
            f"services are missing: {lines}. Register each with registry.register_value(Type, value) "
            "or registry.register_factory(Type, factory) and pass App(services=registry).",
            missing=[{"tool": tool, "service": service} for tool, service, _place in missing],
        )


class UnfinishedRestoreError(ConfigurationError):
    """A restore into this database was cut off: it may hold runs that no one has held."""

    code = "unfinished_restore"


class UnknownSchemaError(ConfigurationError):
    """The database has a schema that this version doesn't know: a newer version's, or one from before the first release."""

    code = "unknown_schema"


ModelErrorClass = Literal[
    "unreachable",
    "rate_limited",
    "server_error",
    "authentication",
    "permission",
    "not_found",
    "invalid_request",
    "context_length",
    "bad_response",
    "configuration",
]


ADAPTER_BUG = "This is a bug in the adapter, so the request is not sent again."


class ModelError(TurngateError):
    """The model's provider failed.

    ``retryable``: whether the same request may succeed later. ``retry_after_seconds``: the provider's own wish, when it
    gave one (HTTP ``Retry-After``, RFC 9110 §10.2.3).
    """

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        error_class: ModelErrorClass,
        retryable: bool,
        retry_after_seconds: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, error_class=error_class, status=status)
        self.error_class: ModelErrorClass = error_class
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.status = status


class NotFoundError(TurngateError):
    """There is no such thing, or this caller may not know of it."""

    code = "not_found"


class ConflictError(TurngateError):
    """The thing is in a state that does not allow this; ``details`` say which."""

    code = "conflict"


class GoneError(TurngateError):
    """It ended together with its run and can no longer be answered."""

    code = "gone"


class ForbiddenError(TurngateError):
    """The credential is good, and may not do this."""

    code = "forbidden"


class UnauthenticatedError(TurngateError):
    """No credential, or one that is not (or no longer) valid."""

    code = "unauthenticated"


class InvalidInputError(TurngateError):
    """The input does not fit; nothing was changed. ``details['errors']`` lists ``{pointer, message}``."""

    code = "invalid_input"


class TooManyRequestsError(TurngateError):
    """Someone asks too often; nothing was changed. ``details['retry_after_seconds']``: when to ask again, at least 1."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_seconds: int, code: str | None = None) -> None:
        super().__init__(message, code=code, retry_after_seconds=retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class UnreadableContentError(TurngateError):
    """Encrypted content in the database can't be read: it was changed, moved to another row or cut, or its key is gone."""

    code = "unreadable_content"


class UnavailableError(TurngateError):
    """Something Turngate depends on is away. Nothing was changed; send the same request again later."""

    code = "unavailable"
