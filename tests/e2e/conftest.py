"""Makes the modules beside the tests importable; there is nothing to share but them."""

from __future__ import annotations
