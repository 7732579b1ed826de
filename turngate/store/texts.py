"""A list of texts as one parameter of a statement, so that its text is the same for any number of them.

SQLAlchemy writes a list in ``IN`` as one parameter for each text and compiles the statement each time it runs. Such a
statement can't run on the driver (:mod:`turngate.store.prepared`), and psycopg prepares each length of it apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, String, bindparam, literal_column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def among(name: str) -> Select[str]:
    """Return the texts of the parameter of that name, for ``IN``. Run the statement with :func:`listed` texts there."""
    return select(literal_column("listed.value", String)).select_from(_Listed(bindparam(name, type_=String)))


def listed(texts: Iterable[str]) -> str:
    """Return texts of the store as the value of one parameter. PostgreSQL raises for NUL and half surrogates in others."""
    return json.dumps(list(texts))


class _Listed(FunctionElement[Any]):
    """The members of a JSON list as rows."""

    inherit_cache = True


@compiles(_Listed, "sqlite")
def _on_sqlite(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)}) AS listed"


@compiles(_Listed)
def _on_postgresql(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS JSON)) AS listed(value)"
