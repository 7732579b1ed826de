"""The one place where settings become models."""

from __future__ import annotations

from pathlib import Path

from turngate.models.registry import Models, ModelSettings
from turngate.runtime.settings import Settings


def build_models(settings: Settings, *, script_base: Path) -> Models:
    """Return the models of this process. ``script_base``: where the file of ``scripted:FILE`` is looked for."""
    return Models(
        ModelSettings(
            openai_base_url=settings.openai_base_url,
            openai_api_key=settings.openai_api_key,
            script_base=script_base,
        )
    )
