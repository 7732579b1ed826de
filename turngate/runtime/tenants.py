"""The file of the tenants (``TURNGATE_TENANTS``): who they are, where their requests come in, and where each has its store.

A tenant is a whole Turngate bound to one place: one schema of the database or one SQLite file, one Temporal namespace, its own
data directory and host names (docs/adr/0057). Without the file there are no tenants, and nothing of this applies.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.errors import ConfigurationError
from turngate.text_files import NotTextError, read_text

MOST_TENANTS: Final = 200
_NAME: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*|\[[0-9a-f:.]+\]"
)
_IDENTIFIER: Final = re.compile(r"(?!pg_|information_schema|public\Z)[a-z][a-z0-9_]{0,49}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

OF_ONE_TENANT: Final = frozenset(
    {
        *("key", "key_service", "former_key", "former_key_service"),
        *("audit_key_file", "audit_heads", "audit_heads_command"),
        *("notifications", "workspaces"),
        *("oidc_issuer", "oidc_client_id", "oidc_client_secret", "oidc_scopes", "oidc_role_claim", "oidc_admin_values"),
        *("oidc_operator_values", "oidc_viewer_values", "oidc_default_role", "oidc_session_seconds"),
    }
)
"""Settings that no two tenants may share, so none is inherited: keys, log-ins, where messages are sent, where runs work."""
OF_EACH_TENANT: Final = OF_ONE_TENANT | frozenset(
    {
        *(
            "database_url",
            "public_url",
            "api_url",
            "session_idle_seconds",
            "approval_pace",
            "offer_rule_after",
            "policy_four_eyes",
            "rate_limits",
            "retention",
            "retention_every_seconds",
        ),
        *("rate_limit_per_second", "rate_limit_burst", "login_limit_per_name", "login_limit_per_address"),
        *("tool_calls_at_once", "model_requests_at_once", "streaming"),
    }
)
"""Settings that a tenant may have for itself. The others are of the process, which serves them all."""


def _matches(pattern: re.Pattern[str], rule: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(rule)
        return text

    return check


_Identifier = Annotated[
    str,
    AfterValidator(
        _matches(
            _IDENTIFIER, "up to 50 lower-case letters, digits and underscores, a letter first, and not public or pg_…"
        )
    ),
]
_Host = Annotated[
    str,
    AfterValidator(str.lower),
    AfterValidator(_matches(_HOST, "a host name such as acme.example.com, without scheme, port and wildcard")),
]


class Tenant(BaseModel):
    """One tenant. ``settings``: its own, by the names of the fields of Settings; secrets as ``…_file``.

    ``schema_name``, ``role``: None: by its name. ``namespace``: None: the deployment's, a hyphen and its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[
        str, AfterValidator(_matches(_NAME, "up to 30 lower-case letters, digits and hyphens, a letter first"))
    ]
    hosts: Annotated[list[_Host], Field(min_length=1, max_length=50)]
    schema_name: _Identifier = Field(alias="schema", default="")
    role: _Identifier = ""
    namespace: Annotated[
        str, AfterValidator(_matches(_NAMESPACE, "up to 200 letters, digits, dots, hyphens and underscores"))
    ] = ""
    settings: dict[str, Any] = Field(default_factory=dict)


def load_tenants(path: Path, namespace: str) -> tuple[Tenant, ...]:
    """Return the tenants in the file's order, with every name filled in. ``namespace``: the deployment's.

    Raises ConfigurationError, which names the tenant and the key: it can't be read, a value is wrong, or two tenants share a
    host, a schema, a role or a namespace.
    """
    try:
        tables = tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigurationError(
            f"tenants file {path} cannot be read ({error.strerror}): set TURNGATE_TENANTS to a file that is there"
        ) from None
    except (tomllib.TOMLDecodeError, NotTextError) as error:
        raise ConfigurationError(f"tenants file {path} is not TOML: {error}") from None
    if not tables or len(tables) > MOST_TENANTS:
        raise ConfigurationError(
            f"tenants file {path} holds {len(tables)} tables: give one to {MOST_TENANTS}, each [NAME]"
        )
    tenants = tuple(_tenant(path, name, table, namespace) for name, table in tables.items())
    _require_distinct(path, tenants)
    return tenants


def _tenant(path: Path, name: str, table: object, namespace: str) -> Tenant:
    if not isinstance(table, dict):
        raise ConfigurationError(
            f"tenants file {path}: {name!r} is outside of a table: write [{name}] above a tenant's keys"
        )
    if "name" in table:
        raise ConfigurationError(
            f"tenants file {path}, [{name}], name: there is no such key; the table's own name is it"
        )
    identifier = f"tenant_{name.replace('-', '_')}"
    names = {"schema": table.get("schema", identifier), "namespace": f"{namespace}-{name}"}
    try:
        tenant = Tenant.model_validate({"role": names["schema"], **names, **table, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        what = (
            "there is no such key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        )
        raise ConfigurationError(f"tenants file {path}, [{name}], {where}: {what}") from None
    for key, value in tenant.settings.items():
        _require_setting(f"tenants file {path}, [{name}.settings], {key}", key, value)
    return tenant


SECRETS: Final = frozenset({"key", "former_key", "oidc_client_secret"})
SECRET_FILE: Final = "_file"  # noqa: S105 - the end of a name
PATHS: Final = frozenset({"audit_key_file", "audit_heads", "notifications", "retention"})


def _require_setting(where: str, key: str, value: object) -> None:
    field = key.removesuffix(SECRET_FILE) if key not in OF_EACH_TENANT else key
    if field not in OF_EACH_TENANT or (field != key and field not in SECRETS):
        raise ConfigurationError(f"{where}: no setting of one tenant; there are: {', '.join(sorted(OF_EACH_TENANT))}")
    if key in SECRETS:
        raise ConfigurationError(f"{where}: a secret is in a file of its own: give its path as {key}{SECRET_FILE}")
    if not isinstance(value, (str, int, float, bool)):
        raise ConfigurationError(f"{where}: give a text, a number, true or false, as its variable would")


def _require_distinct(path: Path, tenants: Iterable[Tenant]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for tenant in tenants:
        places = [("host", host) for host in tenant.hosts]
        places += [("schema", tenant.schema_name), ("role", tenant.role), ("namespace", tenant.namespace)]
        for place in places:
            owner = owners.setdefault(place, tenant.name)
            if owner != tenant.name or places.count(place) > 1:
                both = f"[{tenant.name}] twice" if owner == tenant.name else f"[{owner}] and [{tenant.name}]"
                raise ConfigurationError(
                    f"tenants file {path}: {both} have the {place[0]} {place[1]}: give each its own"
                )


def named(tenants: Iterable[Tenant], name: str) -> Tenant:
    """Return the tenant of this name. Raises ConfigurationError, which names those there are."""
    by_name = {each.name: each for each in tenants}
    if name not in by_name:
        raise ConfigurationError(f"there is no tenant {name!r}; there are: {', '.join(by_name)}")
    return by_name[name]
