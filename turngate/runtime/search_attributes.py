"""Search attributes at the server: which of our names a namespace has, and adding what is missing.

They are of a namespace: `turngate up` adds them to its own server, and on other servers an operator does it once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.labels import ATTRIBUTES

KEYWORD: Final = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
WAIT: Final = timedelta(seconds=3)


async def missing(client: Client, *, wait: timedelta = WAIT) -> list[str]:
    """Return our search attributes that the client's namespace doesn't have, or has with another type.

    Raises the SDK's errors: the server is away, or doesn't let us ask.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    answer = await client.operator_service.list_search_attributes(request, timeout=wait)
    return [name for name in ATTRIBUTES if answer.custom_attributes.get(name) != KEYWORD]


async def add(client: Client, *, wait: timedelta = WAIT) -> list[str]:
    """Add what is missing to the client's namespace, and return what was. Safe to repeat.

    Raises the SDK's errors, also where the namespace has one of these names with another type, or no room for one more.
    """
    lacking = await missing(client, wait=wait)
    if lacking:
        request = AddSearchAttributesRequest(
            namespace=client.namespace, search_attributes=dict.fromkeys(lacking, KEYWORD)
        )
        await client.operator_service.add_search_attributes(request, timeout=wait)
    return lacking


async def look_or_add(client: Client, *, adding: bool) -> list[str]:
    """Return what is :func:`missing`, after adding it if wanted.

    Raises ConfigurationError, with the command for an operator, if Temporal refuses.
    """
    try:
        return await (add(client) if adding else missing(client))
    except RPCError as error:
        address = client.service_client.config.target_host
        raise ConfigurationError(
            f"Temporal at {address} refuses ({error.message}). Someone with an operator's rights can run: "
            f"{command(address, client.namespace)}"
        ) from error


def command(address: str, namespace: str) -> str:
    """Return Temporal's own command that adds all of them."""
    names = " ".join(f"--name {name} --type Keyword" for name in ATTRIBUTES)
    return f"temporal operator search-attribute create --address {address} --namespace {namespace} {names}"
