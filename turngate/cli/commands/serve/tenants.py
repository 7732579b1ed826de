"""``turngate tenants``."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Annotated

import typer

from turngate.cli import stores, terminal
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import AsJson, DataDir, seconds_of
from turngate.cli.temporal_link import find_address
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.runtime import search_attributes, temporal_client
from turngate.runtime.settings import Settings
from turngate.runtime.tenants import Tenant
from turngate.store.access import binding
from turngate.store.connection import unbound_url
from turngate.store.database import Database

app = typer.Typer(no_args_is_help=True, help="The tenants of this deployment: list, check, create, migrate.")
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]…", show_default=False, help="The tenants; without one, all.")
]


@app.command("list")
def list_tenants(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the tenants: their host names, and where each has its store and its workflows."""
    rows = [(each, settings) for each, settings in _chosen(server_settings(data_dir=data_dir), None)]
    if as_json:
        terminal.raw(json.dumps([_row(each, settings) for each, settings in rows], indent=2))
        return
    terminal.table(
        ("tenant", "hosts", "store", "namespace"),
        [(each.name, ", ".join(each.hosts), _place(each, settings), each.namespace) for each, settings in rows],
    )


@app.command("check")
def check(names: Names = None, data_dir: DataDir = None) -> None:
    """Check that each tenant has its store and its namespace, and that its role reaches no other's."""

    async def check_all() -> bool:
        is_good = True
        for each, settings in _chosen(server_settings(data_dir=data_dir), names):
            reasons = await _problems(settings)
            is_good = is_good and not reasons
            terminal.line(f"{each.name}: {'; '.join(reasons) or 'good'}")
        return is_good

    if not asyncio.run(check_all()):
        raise typer.Exit(1)


@app.command("create")
def create(
    names: Names = None,
    retention: Annotated[
        str, typer.Option(metavar="TIME", help="How long Temporal keeps the history of a run that has ended.")
    ] = "7d",
    data_dir: DataDir = None,
) -> None:
    """Create what a tenant lacks: its role and schema or its file, its tables, its Temporal namespace with search attributes.

    Safe to repeat.
    """
    period = timedelta(seconds=seconds_of(retention, "--retention"))
    chosen = _chosen(server_settings(data_dir=data_dir), names)

    async def create_all() -> None:
        for each, own in chosen:
            await _create_schema(own)
            async with stores.opened_store(own, migrate=True) as database:
                revision = await database.schema_revision()
            terminal.line(f"{each.name}: the store is {_place(each, own)}, at {revision}")
            address = find_address(own)
            if address is None:
                terminal.line(f"{each.name}: no Temporal is configured; create the namespace {each.namespace} there")
                continue
            is_new = await temporal_client.create_namespace(own, address, period)
            terminal.line(f"{each.name}: the namespace {each.namespace} is {'new' if is_new else 'there'}")
            if own.search_attributes:
                await _add_search_attributes(each, own, address)

    asyncio.run(create_all())


async def _add_search_attributes(tenant: Tenant, settings: Settings, address: str) -> None:
    """Add them, or say who can. Runs work without them."""
    client = await temporal_client.connect(settings, address)
    try:
        added = await search_attributes.look_or_add(client, adding=True)
    except ConfigurationError as error:
        terminal.note(f"{tenant.name}: {error}")
        return
    terminal.line(f"{tenant.name}: search attributes: {'added ' + ', '.join(added) if added else 'all there'}")


@app.command("migrate")
def migrate(names: Names = None, data_dir: DataDir = None) -> None:
    """Bring the tenants' stores to this version, one after the other."""
    settings = server_settings(data_dir=data_dir)

    async def migrate_all() -> None:
        for each, own in _chosen(settings, names):
            async with stores.opened_store(own, migrate=True) as database:
                terminal.line(f"{each.name}: the store's schema is at {await database.schema_revision()}")

    asyncio.run(migrate_all())


def _chosen(settings: Settings, names: list[str] | None) -> list[tuple[Tenant, Settings]]:
    """Return the named tenants, or all, with their settings. Raises ConfigurationError: no file, or no such tenant."""
    if settings.tenants is None:
        raise ConfigurationError("this deployment has no tenants: put `--tenants FILE` first, or set TURNGATE_TENANTS")
    by_name = {str(each.tenant): each for each in settings.served()}
    tenants_of = {each.name: each for each in settings.all_tenants()} if settings.tenant is None else {}
    wanted = names or list(by_name)
    if unknown := [name for name in wanted if name not in by_name]:
        raise ConfigurationError(f"there is no tenant {unknown[0]!r}; there are: {', '.join(by_name)}")
    if not tenants_of:
        raise ConfigurationError("`turngate tenants` is about all of them: leave --tenant and TURNGATE_TENANT out")
    return [(tenants_of[name], by_name[name]) for name in wanted]


def _place(tenant: Tenant, settings: Settings) -> str:
    files = settings.database_files
    return str(files[0]) if files else f"schema {tenant.schema_name}"


def _row(tenant: Tenant, settings: Settings) -> dict[str, object]:
    return {
        "name": tenant.name,
        "hosts": tenant.hosts,
        "store": _place(tenant, settings),
        "namespace": tenant.namespace,
        "public_url": settings.resolved_public_url,
    }


async def _create_schema(settings: Settings) -> None:
    bound = Database(settings.resolved_database_url)
    await bound.close()
    if bound.binding is None:
        return
    owner = Database(unbound_url(settings.resolved_database_url))
    try:
        async with owner.write() as conn:
            await binding.create(conn, bound.binding)
    finally:
        await owner.close()


async def _problems(settings: Settings) -> list[str]:
    """Return what is wrong with one tenant's place, as sentences; empty: nothing."""
    reasons = []
    try:
        if not settings.database_files or settings.database_files[0].exists():
            async with stores.opened_store(settings, migrate=False):
                pass
        else:
            reasons.append(f"there is no file {settings.database_files[0]}: `turngate tenants create` creates it")
    except TurngateError as error:
        reasons.append(error.message)
    address = find_address(settings)
    try:
        if address is None:
            reasons.append("no Temporal is configured: set TEMPORAL_ADDRESS")
        else:
            await temporal_client.connect(settings, address)
    except TurngateError as error:
        reasons.append(error.message)
    return reasons
