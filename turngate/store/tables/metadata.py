"""The one metadata of every table, with the names that constraints get, and the type of numbers that only grow."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

SequenceNumber = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits on both: SQLite's INTEGER has them, and only under that name is the primary key the row's own number."""
