"""The retention file: its rules, and errors that name line and key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.domain.retention import RetentionRule, read_retention

GOOD = """
[[rule]]
name = "support"
kind = "conversations"
keep = "90d"
agent = "support"

[[rule]]
name = "lookups"
kind = "results"
keep = "2w"
tools = ["search"]
"""


def test_a_file_is_its_rules() -> None:
    """Durations are hours, days, weeks or years."""
    assert read_retention(GOOD) == [
        RetentionRule(name="support", kind="conversations", keep=timedelta(days=90), agent="support"),
        RetentionRule(name="lookups", kind="results", keep=timedelta(days=14), tools=("search",)),
    ]
    assert read_retention("") == []


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ('keep = "2w"', 'keep = "2 weeks"', "line 11: keep is a number and h, d, w or y"),
        ('kind = "results"', 'kind = "result"', "line 10: kind is one of conversations, results"),
        ('tools = ["search"]', 'tool = "search"', "line 12: 'tool' is no key of a rule"),
        ('name = "lookups"', 'name = "support"', "line 9: two rules are named 'support'"),
        ('kind = "results"', 'kind = "errors"', "line 12: only a rule for results can name tools"),
        (
            'kind = "conversations"',
            'kind = "policy"',
            "line 6: only conversations, errors, previews, results can name an agent",
        ),
        ('keep = "90d"', "", "line 2: the rule has no keep"),
        ('keep = "90d"', 'keep = "0d"', "line 5: keep is a number"),
        ('tools = ["search"]', "tools = []", "line 12: tools is a list of names"),
        ('name = "lookups"', "name = [", "retention.toml: "),
    ],
)
def test_an_error_names_its_line(before: str, after: str, error: str) -> None:
    """Nothing is kept shorter than someone meant because of a typo."""
    with pytest.raises(ConfigurationError, match="retention") as refused:
        read_retention(GOOD.replace(before, after))
    assert error in str(refused.value)
