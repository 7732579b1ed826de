"""What a worker has loaded: modules, the virtual environment, policy, models and scripts. No tool may change these.

A run whose workspace holds them could otherwise have its own code run by the worker, outside of every confinement.
File tools compare by device and inode, as with Turngate's own files. The composition root says once per process what was loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from turngate.toolkits.confinement.system_paths import is_below, python_directories
from turngate.toolkits.private_files import PrivateFiles

LOADED_FILES: Final = PrivateFiles()
"""Of this process, without what Python would only load later."""


def loaded_files(others: Iterable[Path] = (), agents_write: Iterable[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Return the directories and the files that this process runs from, outside of the system's Python.

    A path is as it was spelled when it was opened: where a link is a part of it, the link counts, too.

    Args:
        others: what the app was loaded from besides modules.
        agents_write: where agents may write. What lies there counts, also if that is a part of the system's Python.
    """
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    roots = tuple(map(os.path.realpath, agents_write))
    directories = python_directories(roots)
    spelled, real_directories = tuple(map(str, directories)), tuple(map(os.path.realpath, directories))
    real_directory = cache(os.path.realpath)
    files: dict[str, None] = {}
    for each in (*filter(None, modules), *others, f"{sys.prefix}/pyvenv.cfg"):
        path = os.path.abspath(each)  # noqa: PTH100 - keeps links
        parent, name = os.path.split(path)
        real = os.path.realpath(path) if os.path.islink(path) else f"{real_directory(parent)}/{name}"  # noqa: PTH114
        is_of_python = is_below(path, (sys.prefix, sys.base_prefix)) and not is_below(real, roots)
        if not is_of_python and not is_below(real, real_directories):
            files[real if is_below(path, spelled) else path] = None
    return directories, list(map(Path, files))
