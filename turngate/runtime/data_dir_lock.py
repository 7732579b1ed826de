"""One data directory, one embedded server: a lock that lives exactly as long as the server does."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import process_birth

DYING_OWNER_SECONDS: Final = 3.0
"""How long to wait for a server whose owner has died: the kernel is about to kill it."""


class DataDirLock:
    """An advisory lock (flock(2)) on a file that holds its owner's pid.

    The lock belongs to the open file, so a child that inherits :attr:`descriptor` keeps it after its parent was killed:
    two servers can never write to one database, not even while the first one is dying.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """Return the open file's descriptor, to be inherited by the server; the lock must be held."""
        if self._descriptor is None:
            raise RuntimeError("the lock is not held")
        return self._descriptor

    async def acquire(self) -> None:
        """Take the lock; raises ConfigurationError naming the process that holds it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go; safe to repeat. The file stays, since removing it would let two processes lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _lock(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DYING_OWNER_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                alive = owner.isdecimal() and process_birth(int(owner)) is not None
                if alive or loop.time() > deadline:
                    who = f"process {owner}" if alive else f"a server that outlived process {owner or '?'}"
                    raise ConfigurationError(
                        f"the data directory {self._path.parent} is in use by {who}: "
                        "stop it, or set TURNGATE_DATA_DIR to another directory",
                        pid=owner,
                    ) from None
                await asyncio.sleep(0.02)
            else:
                return
