"""The API's settings, made from the process's settings."""

from __future__ import annotations

import pytest

from turngate.cli.api_settings import api_settings
from turngate.runtime.settings import Settings


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({}, None),
        ({"temporal_ui_url": "http://127.0.0.1:8233/"}, "http://127.0.0.1:8233/namespaces/default/workflows"),
        (
            {"temporal_ui_url": "https://temporal.example.com", "temporal_namespace": "a/b"},
            "https://temporal.example.com/namespaces/a%2Fb/workflows",
        ),
    ],
)
def test_links_to_temporals_pages_have_its_address_and_namespace(settings: dict[str, str], pages: str | None) -> None:
    """Links to workflows are made of the address and the namespace; without an address there are none."""
    assert api_settings(Settings(**settings)).temporal_pages == pages
