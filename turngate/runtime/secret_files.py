"""Secrets from files: ``NAME_FILE`` names the file that holds what ``NAME`` would.

A secret in the environment is in reach of whatever can read a process's environment, and of every log of it. A file is opened
once by a process, so it may be a pipe, or be gone after the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from turngate.domain.errors import ConfigurationError
from turngate.text_files import NotTextError, decoded

SUFFIX: Final = "_FILE"
MAX_SECRET_BYTES: Final = 65_536


def secrets_from_files(names: Mapping[str, tuple[str, ...]], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets whose variables name a file, by setting.

    Args:
        names: setting → the variables that may hold its value.
        environment: names of variables → values; an empty one counts as not set.

    Raises:
        ConfigurationError: a variable and its file are both set, or a file can't be read, is empty or over 64 KiB.
    """
    secrets = {}
    for setting, variables in names.items():
        files = [variable + SUFFIX for variable in variables if environment.get(variable + SUFFIX)]
        if not files:
            continue
        also = [variable for variable in variables if environment.get(variable)]
        if also or len(files) > 1:
            raise ConfigurationError(f"{' and '.join([*files, *also])} say the same: set one of them")
        secrets[setting] = _read(files[0], environment[files[0]])
    return secrets


@cache
def _read(variable: str, file: str) -> str:
    try:
        with Path(file).expanduser().open("rb") as opened:
            content = opened.read(MAX_SECRET_BYTES + 1)
        secret = decoded(content).strip()
    except OSError as error:
        raise ConfigurationError(f"{variable}={file} cannot be read: {os.strerror(error.errno or 0)}") from None
    except NotTextError as error:
        raise ConfigurationError(f"{variable}={file} holds no text in UTF-8 ({error})") from None
    if not secret or len(content) > MAX_SECRET_BYTES:
        problem = "is empty" if not secret else f"is larger than {MAX_SECRET_BYTES:,} bytes"
        raise ConfigurationError(f"{variable}={file} {problem}")
    return secret
