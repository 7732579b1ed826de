"""I15, as data: which columns are compared with the log, and why the others are not."""

from __future__ import annotations

import pytest
from sqlalchemy import Table
from support.stores.compared_columns import compared_columns

from turngate.store.tables import metadata
from turngate.store.tables.evidence import DIGESTS, FACTS, NOT_COMPARED, TABLES, TABLES_NOT_COMPARED


@pytest.mark.parametrize("table", metadata.tables.values(), ids=str)
def test_i15_every_column_is_compared_or_has_a_reason(table: Table) -> None:
    """I15: a column of any table is compared with the log, or is listed with the reason why no one relies on it; never both."""
    name, columns = table.name, {column.name for column in table.columns}
    listed = [each for names in NOT_COMPARED.get(name, {}) for each in names.split()]
    if name in " ".join(TABLES_NOT_COMPARED).split():
        listed += sorted(columns - compared_columns(name))
    assert len(listed) == len({*listed})
    assert compared_columns(name) | {*listed} == columns
    assert compared_columns(name) & {*listed} == set()


def test_i15_the_table_names_tables_and_columns_that_there_are() -> None:
    """I15: facts, digests and keys name tables that are compared; a table that is compared is not one of those that are not."""
    assert {each.table for facts in FACTS.values() for each in facts} <= TABLES.keys()
    assert {each.table for each in DIGESTS.values()} <= TABLES.keys()
    assert set(" ".join(TABLES_NOT_COMPARED).split()) <= metadata.tables.keys() - TABLES.keys()
