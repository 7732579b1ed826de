"""Which columns evidence compares, by its own tables."""

from __future__ import annotations

from turngate.store.tables.evidence import DIGESTS, FACTS, RELATED, TABLES


def compared_columns(table: str) -> frozenset[str]:
    """The columns of a table that are compared with the log, or with rows that are."""
    if table not in TABLES:
        return frozenset(RELATED.get(table, "").split())
    digested = {name for each in DIGESTS.values() if each.table == table for name in each.columns}
    columns_of_facts = {name for facts in FACTS.values() for each in facts if each.table == table for name in each.says}
    return frozenset({*digested, *columns_of_facts, *TABLES[table].key, *RELATED.get(table, "").split()})
