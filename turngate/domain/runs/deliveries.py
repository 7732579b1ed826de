"""The words for what happened to a notification."""

from __future__ import annotations

from typing import Literal

DeliveryStatus = Literal["gathering", "waiting", "sending", "delivered", "failed"]
"""``gathering``: events are still added. ``waiting``: for its time. ``sending``: claimed. The last two are its end."""
