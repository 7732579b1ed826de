"""svcs, which injects services into handlers, without its integrations with web frameworks.

``import svcs`` imports the integration of each framework that is installed, FastAPI and its test client among them: a fifth of a
worker's start. So svcs is imported from here. A program that wants ``svcs.fastapi`` can still import it by that name.
"""

import sys

_WITHHELD = {f"svcs.{each}" for each in ("aiohttp", "fastapi", "flask", "starlette")} - sys.modules.keys()
sys.modules.update(dict.fromkeys(_WITHHELD))  # type: ignore[arg-type] # None: importing it fails, as if it weren't installed
try:
    import svcs
finally:
    for _name in _WITHHELD:
        del sys.modules[_name]

__all__ = ["svcs"]
