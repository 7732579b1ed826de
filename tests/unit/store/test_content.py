"""The list of what columns hold: it leaves nothing out, and it finds a conversation's rows."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables import metadata
from turngate.store.tables.content import TEXT_COLUMNS, Owner, rows_of


@pytest.mark.parametrize("name", sorted(metadata.tables))
def test_each_text_column_is_in_exactly_one_list(name: str) -> None:
    """A new column is refused here until someone says whether it holds content."""
    columns = TEXT_COLUMNS[name]
    listed = [*columns.content, *columns.hashes, *columns.digests, *columns.people, *columns.plain]
    texts = [
        each.name for each in metadata.tables[name].columns if isinstance(each.type, StorableText | StorableString)
    ]
    assert sorted(listed) == sorted(texts)


def test_the_list_names_no_table_that_is_gone() -> None:
    """Nor does it keep one."""
    assert set(TEXT_COLUMNS) == set(metadata.tables)


@pytest.mark.parametrize("name", sorted(metadata.tables))
def test_the_rows_of_a_conversation_can_be_found(name: str) -> None:
    """Every owner is one by which the database finds the rows."""
    condition = rows_of(name, "conv_1")
    assert (condition is None) == (TEXT_COLUMNS[name].owner is Owner.NONE)
    if condition is not None:
        assert str(select(metadata.tables[name]).where(condition))


@pytest.mark.parametrize("name", sorted(metadata.tables))
def test_no_key_or_indexed_column_holds_content(name: str) -> None:
    """What is encrypted can be no key of a row, and no index finds it."""
    table = metadata.tables[name]
    indexed = {column.name for index in table.indexes for column in index.columns}
    keys = {column.name for column in table.columns if column.primary_key or column.unique or column.foreign_keys}
    assert not set(TEXT_COLUMNS[name].content) & (indexed | keys)
