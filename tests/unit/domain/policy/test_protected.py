"""Which protected places a call's path leads to."""

from turngate.domain.policy.protected import touches
from turngate.policies.facts import call_facts


def test_only_the_way_from_the_workspace_on_counts() -> None:
    """A name above the workspace is not the call's; a path that only begins like the workspace's leads to all its names."""
    places = {
        (workspace, path): {each.place for each in touches(call_facts(f'{{"path": "{path}"}}', workspace), [])}
        for workspace, path in [
            ("/w", ".git/config"),
            ("/w/.git/x", "a"),
            ("/w/.git/x", "/w/.git/x/a"),
            ("/w/.git/x", "/w/.git/xy"),
            ("/w/.g", "/w/.git/config"),
            ("/", "/.git/config"),
        ]
    }
    assert list(places.values()) == [{".git"}, set(), set(), {".git"}, {".git"}, {".git"}]
