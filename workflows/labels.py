"""Labels of what a workflow starts (docs/adr/0058): a child gets search attributes, and what a person decided goes first.

Whether the server takes them was found out when this workflow was started. So what it starts is labelled if it is itself, and
a workflow needs no setting: a replay sees the same.
"""

from __future__ import annotations

from typing import Final, TypedDict

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

with workflow.unsafe.imports_passed_through():
    from turngate.domain.contract import ChildRun
    from turngate.domain.runs.labels import AGENT, ATTRIBUTES, SCHEDULE, SOURCE, STARTER, Source

_KEYS: Final = {name: SearchAttributeKey.for_keyword(name) for name in ATTRIBUTES}


class ChildLabels(TypedDict, total=False):
    """Keyword arguments of ``workflow.start_child_workflow``. Priority and fairness key are inherited by the server."""

    search_attributes: TypedSearchAttributes


def labels_of_child(child: ChildRun, source: Source) -> ChildLabels:
    """Return the labels of a run that this workflow starts: its own, with what differs; nothing where it has none."""
    own = workflow.info().typed_search_attributes
    values = {name: own.get(key) for name, key in _KEYS.items()}
    if values[AGENT] is None:
        return {}
    values |= {AGENT: child.agent, SOURCE: source}
    if source == "message":  # the schedule opened the run before it
        values[SCHEDULE] = None
    if child.starter is not None:
        values[STARTER] = child.starter
    pairs = [SearchAttributePair(_KEYS[name], value) for name, value in values.items() if value is not None]
    return {"search_attributes": TypedSearchAttributes(pairs)}


def is_ordered() -> bool:
    """Tell whether this workflow has a priority, so that what it starts may have another one."""
    return workflow.info().priority.priority_key is not None
