"""How workflow code is run."""

from __future__ import annotations

from temporalio.converter import WorkflowSerializationContext

from turngate.runtime.temporal_client import data_converter


def test_the_converter_knows_no_context() -> None:
    """Workflows are not asked for contexts of their payloads: a converter that wants one, or keeps payloads elsewhere, must."""
    converter = data_converter()
    told = converter.with_context(WorkflowSerializationContext(namespace="default", workflow_id="run_1"))
    assert told is converter
    assert converter.payload_codec is None
    assert converter.external_storage is None
