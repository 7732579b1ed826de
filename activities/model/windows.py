"""How many tokens models take, as far as anybody has said."""

from __future__ import annotations

from turngate.domain.agents.model_profiles import Profiles


def window_of(profiles: Profiles, spec: str) -> int | None:
    """Return how many tokens the model of a spec takes; None: nobody has said.

    A model that is named without a profile takes what a profile of the same model says: the window is the model's.
    """
    if spec in profiles:
        return profiles[spec].context_window
    said = (each.context_window for each in profiles.values() if each.model == spec)
    return next((window for window in said if window is not None), None)
