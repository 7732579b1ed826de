"""The key with which push services know this server: of the settings, or made once and kept in the data directory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import write_atomically

if TYPE_CHECKING:
    from turngate.notifications.web_push import PushKey

FILE: Final = "turngate.push-key.pem"
VARIABLE: Final = "TURNGATE_PUSH_KEY"


@dataclass(kw_only=True, repr=False)
class PushKeySource:
    """Where the key comes from. ``pem``: the key itself; without it, ``file`` has it, or will have it."""

    file: Path
    pem: SecretStr | None = None
    _key: PushKey | None = field(default=None, init=False)

    def read(self) -> PushKey:
        """Return the key, made and stored if there is none yet. Raises ConfigurationError, which never repeats it."""
        from turngate.notifications.web_push import PushKey  # noqa: PLC0415 - cryptography is slow to import

        if self._key is not None:
            return self._key
        try:
            if self.pem is None and not self.file.exists():
                self._store(PushKey.generate().to_pem())
            text = self.file.read_text(encoding="utf-8") if self.pem is None else self.pem.get_secret_value()
            self._key = PushKey.from_pem(text)
        except ValueError as problem:
            where = self.file if self.pem is None else VARIABLE
            raise ConfigurationError(f"{where}: {problem}") from None
        except OSError as error:
            raise ConfigurationError(f"{self.file} cannot be used ({error.strerror}): check its owner") from None
        return self._key

    def ensure(self) -> None:
        """Make and store the key, unless there is one. Raises ConfigurationError."""
        if self.pem is None and not self.file.exists():
            self.read()

    def _store(self, text: str) -> None:
        """Write a new key, unless another process is faster: then that one's counts."""
        own = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        write_atomically(own, text)
        with contextlib.suppress(FileExistsError):
            os.link(own, self.file)
        own.unlink()
