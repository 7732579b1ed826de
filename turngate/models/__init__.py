"""Language models: the port and its adapters. Knows the domain and HTTP; never the store, Temporal or the engine.

``port`` is the engine's side, ``registry`` turns a spec (``provider:name``) into a model; ``openai``, ``pydantic_ai`` and
``scripted`` (with ``script``) are the adapters.
"""

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.models.openai.client import OpenAICompatibleModel
from turngate.models.port import LanguageModel, ModelRequest, OnDelta, StreamingModel
from turngate.models.registry import Models, ModelSettings
from turngate.models.scripted import ScriptedModel

__all__ = [
    "LanguageModel",
    "ModelOptions",
    "ModelRequest",
    "ModelSettings",
    "Models",
    "OnDelta",
    "OpenAICompatibleModel",
    "ScriptedModel",
    "StreamingModel",
]
