"""Temporal's own server as a cluster on loopback: its services as separate processes, over a PostgreSQL of its own.

``scripts/cluster`` builds the programs. This writes the services' configuration, creates the databases and the namespace, and is
the :class:`processes.Layout` with which the chaos run's machinery starts, kills and stops all of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from google.protobuf.duration_pb2 import Duration
from processes import APP, WORKER_READY, Layout, Program, api_program, numbered
from support.stores.postgres_server import Cluster
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turngate.runtime import search_attributes
from turngate.runtime.embedded_temporal import choose_port
from turngate.runtime.temporal_client import sdk_runtime

SERVICES: Final = {"frontend": "frontend", "history": "history", "matching": "matching", "internal": "worker"}
"""Our name of each process → the service. Temporal's ``worker`` runs its own workflows: schedules, builds, retention."""
SHARDS: Final = 4
NAMESPACE: Final = "turngate-cluster"
"""Not the default one, so that a forgotten setting fails."""
RETENTION: Final = timedelta(days=1)
DYNAMIC: Final = Path(__file__).resolve().parents[2] / "deploy" / "temporal" / "dynamic-config.yaml"
STORES: Final = {"default": ("temporal", 40), "visibility": ("temporal_visibility", 10)}
"""Data store → its database, and how many connections each process may have."""
READY_SECONDS: Final = 90.0


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the services listen on loopback: for requests, and for each other's membership."""

    rpc: Mapping[str, int]
    membership: Mapping[str, int]

    @classmethod
    def free(cls) -> Ports:
        """Return ports that are free now, each another one."""
        drawn: set[int] = set()
        while len(drawn) < 2 * len(SERVICES):
            drawn.add(choose_port())
        ports = iter(drawn)
        return cls(
            rpc={service: next(ports) for service in SERVICES.values()},
            membership={service: next(ports) for service in SERVICES.values()},
        )


def configuration(ports: Ports, postgres_port: int, dynamic: Path) -> dict[str, Any]:
    """Return the static configuration that all services share; each takes its own part of it.

    https://docs.temporal.io/references/configuration
    """
    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "default",
            "visibilityStore": "visibility",
            "numHistoryShards": SHARDS,
            "datastores": {
                store: {"sql": _sql(database, connections, postgres_port)}
                for store, (database, connections) in STORES.items()
            },
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
        "services": {
            service: {
                "rpc": {
                    "grpcPort": ports.rpc[service],
                    "membershipPort": ports.membership[service],
                    "bindOnIP": "127.0.0.1",
                }
            }
            for service in SERVICES.values()
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {
                    "enabled": True,
                    "initialFailoverVersion": 1,
                    "rpcName": "frontend",
                    "rpcAddress": f"127.0.0.1:{ports.rpc['frontend']}",
                }
            },
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "publicClient": {"hostPort": f"127.0.0.1:{ports.rpc['frontend']}"},
        "dynamicConfigClient": {"filepath": str(dynamic), "pollInterval": "5s"},
    }


def _sql(database: str, connections: int, port: int) -> dict[str, Any]:
    return {
        "pluginName": "postgres12",
        "databaseName": database,
        "connectAddr": f"127.0.0.1:{port}",
        "connectProtocol": "tcp",
        "user": "turngate",
        "password": "",
        "maxConns": connections,
        "maxIdleConns": connections,
        "maxConnLifetime": "1h",
    }


class TemporalCluster(Layout):
    """Four services of Temporal, ``apis`` APIs and ``workers`` workers.

    ``server``: where ``scripts/cluster`` has built. ``builds``: worker → its build; none where it isn't named. ``apps``: API or
    worker → the app that it runs, where it is another one than the chaos run's. ``dynamic``: the file of dynamic configuration,
    a copy of that in ``deploy/temporal``, which the services read again every few seconds.
    """

    temporal = tuple(SERVICES)
    servers = tuple(SERVICES)
    namespace = NAMESPACE
    prepares = True

    def __init__(
        self,
        server: Path,
        postgres: Cluster,
        directory: Path,
        *,
        apis: int = 2,
        workers: int = 2,
    ) -> None:
        self.apis = numbered("api", apis)
        self.workers = numbered("worker", workers)
        self.builds: dict[str, str] = {}
        self.apps: dict[str, str] = {}
        self._bin = server / "bin"
        self._ports = Ports.free()
        self._api_ports = {name: choose_port() for name in self.apis}
        self._config = directory / "temporal.yaml"
        self._postgres = postgres
        self.dynamic = directory / "dynamic-config.yaml"
        self.dynamic.write_text(DYNAMIC.read_text(encoding="utf-8"), encoding="utf-8")
        wanted = configuration(self._ports, postgres.port, self.dynamic)
        self._config.write_text(yaml.safe_dump(wanted, sort_keys=False), encoding="utf-8")
        self.environment = {"TEMPORAL_ADDRESS": self.address(directory), "TEMPORAL_NAMESPACE": NAMESPACE}

    def address(self, data_dir: Path) -> str:
        """Return where the frontend is."""
        del data_dir
        return f"127.0.0.1:{self._ports.rpc['frontend']}"

    def program(self, name: str, data_dir: Path) -> Program:
        """Return how this one is started."""
        if name in SERVICES:
            service = SERVICES[name]
            chosen = ("--config-file", str(self._config), "--allow-no-auth", "start", "--service", service)
            return Program(
                executable=str(self._bin / "temporal-server"), arguments=chosen, port=self._ports.rpc[service]
            )
        app = self.apps.get(name, APP)
        if name in self._api_ports:
            # Each API has a directory of its own, as on a machine of its own. The first one's has the owner's token.
            own = data_dir if name == self.apis[0] else data_dir.with_name(f"state-{name}")
            return api_program(self._api_ports[name], ("--data-dir", str(own)), app)
        build = ("--build-id", self.builds[name]) if name in self.builds else ()
        return Program(
            arguments=("worker", app, *build, "--data-dir", str(data_dir.with_name(f"state-{name}"))),
            ready_line=WORKER_READY,
        )

    def create_databases(self) -> None:
        """Create Temporal's two databases with their schemas, from what the tool has in it. PostgreSQL must run."""
        for store, (database, _) in STORES.items():
            schema = f"postgresql/v12/{'temporal' if store == 'default' else store}"
            self._sql_tool(database, "create-database")
            self._sql_tool(database, "setup-schema", "--version", "0.0")
            self._sql_tool(database, "update-schema", "--schema-name", schema)

    def _sql_tool(self, database: str, *words: str) -> None:
        where = ("--plugin", "postgres12", "--endpoint", "127.0.0.1", "--port", str(self._postgres.port))
        command = [str(self._bin / "temporal-sql-tool"), *where, "--user", "turngate", "--database", database, *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"]},
            timeout=READY_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"temporal-sql-tool {words[0]} of {database} failed:\n{done.stdout}{done.stderr}")

    async def prepare(self) -> None:
        """Register the namespace with its search attributes, and wait until every service knows it."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                async with asyncio.timeout(10):
                    await self._register()
                    return
            except (RPCError, RuntimeError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the cluster did not take the namespace within {READY_SECONDS:.0f} s"
                    ) from error
                await asyncio.sleep(0.2)

    async def _register(self) -> None:
        client = await Client.connect(self.address(Path()), namespace=NAMESPACE, runtime=sdk_runtime())
        retention = Duration()
        retention.FromTimedelta(RETENTION)
        try:
            await client.workflow_service.register_namespace(
                RegisterNamespaceRequest(namespace=NAMESPACE, workflow_execution_retention_period=retention)
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
        await search_attributes.add(client)
        await client.count_workflows("")  # the frontend knows it, and so does visibility
