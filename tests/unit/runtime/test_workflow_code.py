"""How workflow code is run."""

from __future__ import annotations

from temporalio.converter import WorkflowSerializationContext

from turngate.runtime.temporal_client import data_converter


def test_the_converter_knows_no_context() -> None:
    """Workflow code passes no payload contexts, so a converter that needs them, or stores payloads elsewhere, fails here."""
    converter = data_converter()
    with_context = converter.with_context(WorkflowSerializationContext(namespace="default", workflow_id="run_1"))
    assert with_context is converter
    assert converter.payload_codec is None
    assert converter.external_storage is None
