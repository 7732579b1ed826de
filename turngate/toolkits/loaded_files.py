"""What a worker has loaded: modules, the virtual environment, policy, models and scripts. No tool may change these.

A run whose workspace holds them could otherwise have its own code run by the worker, outside of every confinement.
File tools compare by device and inode, as with Turngate's own files. The composition root says once per process what was loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from turngate.toolkits.private_files import PrivateFiles

LOADED_FILES: Final = PrivateFiles()
"""Of this process, without what Python would only load later."""


def loaded_files(others: Iterable[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Return the directories and the files that this process runs from, outside of the system's Python.

    A path is as it was spelled when it was opened: where a link is a part of it, the link counts, too.

    Args:
        others: what the app was loaded from besides modules.
    """
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    environment = Path(sys.prefix)
    directories = [] if sys.prefix == sys.base_prefix else [environment]
    prefixes = (environment, Path(sys.base_prefix))
    files = dict.fromkeys(Path(os.path.abspath(each)) for each in (*filter(None, modules), *others))  # noqa: PTH100 - keeps links
    return directories, [each for each in files if not any(each.is_relative_to(prefix) for prefix in prefixes)]
