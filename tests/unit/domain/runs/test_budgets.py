"""What a model call costs."""

from __future__ import annotations

import pytest

from turngate.domain.conversation.messages import Usage
from turngate.domain.runs.budgets import Price

CACHED = Usage(input_tokens=1_000, output_tokens=10, cache_read_tokens=800, cache_write_tokens=100)


@pytest.mark.parametrize(
    ("price", "usage", "micros"),
    [
        ({}, CACHED, 1_000 * 2 + 10 * 8),
        ({"cache_read": "0.2"}, CACHED, 200 * 2 + 160 + 10 * 8),
        ({"cache_read": "0.2", "cache_write": 3}, CACHED, 100 * 2 + 160 + 300 + 10 * 8),
        ({"cache_read": 0}, Usage(input_tokens=5, cache_read_tokens=6), 5 * 2),
    ],
    ids=["no price of the cache", "read", "read and written", "more cached than there are"],
)
def test_cached_tokens_cost_what_their_price_says(price: dict[str, str | int], usage: Usage, micros: int) -> None:
    """What was read from the cache or written to it has its own price, where one is known; a count that can't be has none."""
    assert Price.model_validate({"input": 2, "output": 8, **price}).micros(usage) == micros
