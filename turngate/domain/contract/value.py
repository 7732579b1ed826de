"""What every value of the contract is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class WireValue(BaseModel):
    """A value on the wire. Its fields may grow, with a default; none is renamed or removed."""

    model_config = ConfigDict(frozen=True)
