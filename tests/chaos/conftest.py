"""Makes the modules beside the tests importable; there is nothing to share but them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
