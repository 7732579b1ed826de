"""The expressions of Grafana's dashboard in ``deploy/grafana``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

DASHBOARD: Final = Path(__file__).parents[3] / "deploy" / "grafana" / "turngate.json"
INTERVAL: Final = "$__rate_interval"
"""A variable of Grafana's: the shortest window in which a rate has enough scrapes."""


def expressions() -> list[str]:
    """Return the expressions of all panels, as Prometheus gets them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"].replace(INTERVAL, "1m") for panel in panels for target in panel.get("targets", ())]
