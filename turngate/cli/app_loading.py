"""Loading the builder's app for a command: a mistake in the app's own code is told as theirs, with its place."""

from __future__ import annotations

import traceback

from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.runtime.app_loader import LoadedApp, load_app


def load_builders_app(target: str) -> LoadedApp:
    """Return the app; raises as :func:`turngate.runtime.app_loader.load_app`.

    Whatever the app's module raises at import is a ConfigurationError too, with the file and line it came from.
    """
    try:
        return load_app(target)
    except TurngateError:
        raise
    except SyntaxError as error:
        raise ConfigurationError(f"{target} cannot be loaded: {error}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"{target} cannot be loaded: {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from error
