"""A list of texts as one parameter of a statement, so that its text is the same for any number of them.

SQLAlchemy writes a list in ``IN`` as one parameter for each text and compiles the statement each time it runs. Such a
statement can't run on the driver (:mod:`turngate.store.prepared`), and psycopg prepares each length of it apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    String,
    bindparam,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from turngate.store.storable import MARK

SEALED_CHARS: Final = 300
"""What encryption adds to a text, whatever its length."""
SEALED_CHARS_EACH: Final = 6
"""How long one character can become: four bytes, in base64."""


def among(name: str) -> Select[str]:
    """Return the texts of the parameter of that name, for ``IN``. Run the statement with :func:`listed` texts there."""
    return select(literal_column("listed.value", String)).select_from(_Listed(bindparam(name, type_=String)))


def listed(texts: Iterable[str]) -> str:
    """Return texts of the store as the value of one parameter. PostgreSQL raises for NUL and half surrogates in others."""
    return json.dumps(list(texts))


def is_sealed(content: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a text of content is encrypted. The database can't look into it: only its reader can."""
    return func.substr(content, 1, 1) == literal_column(f"'{MARK}'")


def beginning_of(content: ColumnElement[Any], chars: int | BindParameter[int]) -> ColumnElement[str]:
    """Return the beginning of a text of content; all of one that is encrypted, for its reader to clip."""
    return case((is_sealed(content), content), else_=func.substr(content, 1, chars))


def times(text: str, content: ColumnElement[Any]) -> ColumnElement[int]:
    """Return how often a text is in one of content, without overlaps. Of one that is encrypted, the number says nothing."""
    without = func.length(func.replace(content, text, ""), type_=Integer)
    return (func.length(content, type_=Integer) - without) // len(text)


def at_most(content: ColumnElement[Any], chars: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a text has at most so many characters. Of one that is encrypted: about so many, or fewer."""
    longest: ColumnElement[int] = literal_column(str(SEALED_CHARS)) + chars * literal_column(str(SEALED_CHARS_EACH))
    return case((is_sealed(content), func.length(content) <= longest), else_=func.length(content) <= chars)


class _Listed(FunctionElement[Any]):
    """The members of a JSON list as rows."""

    inherit_cache = True


@compiles(_Listed, "sqlite")
def _on_sqlite(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)}) AS listed"


@compiles(_Listed)
def _on_postgresql(element: _Listed, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS JSON)) AS listed(value)"
