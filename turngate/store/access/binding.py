"""The lock around a store that is one schema of a database: it and its role are created and checked (docs/adr/0057).

:class:`turngate.store.connection.Binding` says how a handle is bound to them.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy

from turngate.domain.errors import ConfigurationError
from turngate.store.connection import Binding, Connection


async def create(conn: Connection, binding: Binding) -> bool:
    """Create the role and its schema if they are missing; return whether the schema is new. Safe to repeat.

    ``conn``: of a handle without a binding; its login may create roles and schemas if something is missing. The role can't log
    in; it owns the schema, so migrations run under it. Raises ConfigurationError when the names are used for something else.
    """
    role, schema = binding.role, binding.schema
    if role is None:
        raise ConfigurationError(f"the schema {schema} needs a role of its own")
    has_role = await _is_there(conn, "pg_roles", "rolname", role)
    is_new = not await _is_there(conn, "pg_namespace", "nspname", schema)
    if not has_role:
        await conn.execute(sqlalchemy.text(f"CREATE ROLE {role} NOLOGIN NOINHERIT"))
    if not has_role or is_new:
        version = int((await conn.execute(sqlalchemy.text("SHOW server_version_num"))).scalar_one())
        # The login may become the role, and has none of its rights before it does. Older servers can't tell the two apart.
        options = " WITH SET TRUE, INHERIT FALSE" if version >= _GRANTS_HAVE_OPTIONS else ""
        await conn.execute(sqlalchemy.text(f"GRANT {role} TO CURRENT_USER{options}"))
    if is_new:
        await conn.execute(sqlalchemy.text(f"CREATE SCHEMA {schema} AUTHORIZATION {role}"))
    require_apart(await problems(conn, binding), binding)
    return is_new


_GRANTS_HAVE_OPTIONS: Final = 160_000


async def _is_there(conn: Connection, catalogue: str, column: str, name: str) -> bool:
    query = sqlalchemy.text(f"SELECT 1 FROM pg_catalog.{catalogue} WHERE {column} = :name")  # noqa: S608 - our own names
    return (await conn.execute(query, {"name": name})).first() is not None


def require_apart(reasons: list[str], binding: Binding) -> None:
    """Raise ConfigurationError with what :func:`problems` returned, unless that is nothing."""
    if reasons:
        raise ConfigurationError(f"the schema {binding.schema} is not one store's own: {'; '.join(reasons)}")


_ROLE: Final = sqlalchemy.text(
    "SELECT rolcanlogin AS login, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication AS strong, "
    "(SELECT string_agg(pg_get_userbyid(roleid), ', ') FROM pg_auth_members WHERE member = pg_roles.oid) AS others "
    "FROM pg_catalog.pg_roles WHERE rolname = :role"
)
_OWNER: Final = sqlalchemy.text("SELECT pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace WHERE nspname = :schema")
_ELSEWHERE: Final = sqlalchemy.text(
    "SELECT nspname FROM pg_catalog.pg_namespace "
    "WHERE nspname NOT IN (:schema, 'pg_catalog', 'information_schema', 'public') "
    "AND nspname NOT LIKE 'pg\\_t%' AND has_schema_privilege(:role, oid, 'USAGE, CREATE') "
    "UNION ALL SELECT 'public.' || relname FROM pg_catalog.pg_class "
    "WHERE relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'public') AND relkind IN ('r', 'p', 'v', 'm') "
    "AND (has_table_privilege(:role, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') "
    "OR has_any_column_privilege(:role, oid, 'SELECT, INSERT, UPDATE')) ORDER BY 1 LIMIT 5"
)
_GUESTS: Final = sqlalchemy.text(
    "SELECT rolname FROM pg_catalog.pg_roles WHERE NOT rolcanlogin AND NOT rolsuper AND rolname NOT LIKE 'pg\\_%' "
    "AND rolname <> :role AND has_schema_privilege(oid, :schema, 'USAGE, CREATE') ORDER BY 1 LIMIT 5"
)


async def problems(conn: Connection, binding: Binding) -> list[str]:
    """Return, as sentences, why role and schema keep no one apart: what is missing, which rights reach across. Empty: none."""
    names = {"schema": binding.schema, "role": binding.role}
    owner = (await conn.execute(_OWNER, {"schema": binding.schema})).scalar_one_or_none()
    role = (await conn.execute(_ROLE, {"role": binding.role})).one_or_none()
    if owner is None or role is None:
        what = f"there is no schema {binding.schema}" if owner is None else f"there is no role {binding.role}"
        return [f"{what}: `turngate migrate` creates it"]
    reasons = []
    if owner != binding.role:
        reasons.append(f"the schema {binding.schema} belongs to {owner}, not to {binding.role}")
    if role.login:
        reasons.append(f"the role {binding.role} can log in: ALTER ROLE {binding.role} NOLOGIN")
    if role.strong:
        reasons.append(f"the role {binding.role} has rights over the whole server: it must have none")
    if role.others:
        reasons.append(f"the role {binding.role} is a member of {role.others}: REVOKE that")
    elsewhere = (await conn.execute(_ELSEWHERE, names)).scalars().all()
    if elsewhere:
        reasons.append(f"the role {binding.role} also reaches {', '.join(elsewhere)}: REVOKE its rights there")
    guests = (await conn.execute(_GUESTS, names)).scalars().all()
    if guests:
        reasons.append(f"the schema {binding.schema} is open to {', '.join(guests)}: REVOKE their rights")
    return reasons
