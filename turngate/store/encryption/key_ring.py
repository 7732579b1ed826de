"""Keys: the deployment's own wraps those of the ring, these wrap one data key per conversation.

A key service (:class:`KeyService`) is asked when a process starts and when keys rotate, never between. A data key is
made with its conversation's row, and is kept in memory by the processes that use it, at most :data:`MOST_KEYS`.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import bindparam, delete, insert, select, union_all, update

from turngate.domain.errors import ConfigurationError, UnreadableContentError
from turngate.store.clock import as_text, now
from turngate.store.connection import Connection
from turngate.store.encryption.places import Value
from turngate.store.encryption.sealed import KEY_BYTES, NONCE_BYTES, DataKey, HashKey
from turngate.store.tables import conversations, erasures, events, key_ring, precedents, requests, runs
from turngate.store.tables.content import TEXT_COLUMNS, Owner
from turngate.store.texts import among, listed

MOST_KEYS: Final = 10_000
"""How many conversations' keys, and to which conversation how many runs belong, a process keeps in memory."""
DEPLOYMENT: Final = "="
"""How the names of keys of the deployment begin; no conversation's id does."""
PLAIN: Final = "plain"
"""The key of the ring that says that texts from before the encryption may be plain, until ``turngate keys encrypt`` is done."""
SALT_BYTES: Final = 12

_DATA_KEY = select(conversations.c.data_key).where(conversations.c.id == bindparam("conversation"))
_DATA_KEYS = select(conversations.c.id, conversations.c.data_key).where(conversations.c.id.in_(among("ids")))
_OF_RUN = select(runs.c.conversation_id).where(runs.c.id == bindparam("run"))
_OF_REQUEST = select(requests.c.run_id).where(requests.c.id == bindparam("request"))
_ERASED = select(erasures.c.id).where(erasures.c.conversation_id == bindparam("conversation")).limit(1)
_IN_USE = union_all(select(conversations.c.id), select(events.c.hash)).limit(1)
_RING = select(key_ring)
_ADD = insert(key_ring)


_T = TypeVar("_T")


async def ring_of(conn: Connection) -> list[str]:
    """Return which of the deployment's own keys wrap the keys of the ring, the newest last; empty: nothing is encrypted."""
    rows = (await conn.look(_RING.where(key_ring.c.kind == "ring").order_by(key_ring.c.created_at))).mappings()
    return [row["wrapped_by"] for row in rows]


class KeyService(Protocol):
    """What keeps the deployment's own key: a file, Vault, a cloud's key service. It may take its time and do I/O.

    ``name``: says which key it is, without telling it, such as ``file:3f9c2a`` or ``vault:transit/turngate``.
    """

    @property
    def name(self) -> str:
        """Which key it is."""

    def wrap(self, key: bytes) -> str:
        """Return a key of 32 bytes, encrypted. Raises ConfigurationError or UnavailableError."""

    def unwrap(self, wrapped: str) -> bytes:
        """Return a key that :meth:`wrap` encrypted. Raises ConfigurationError if it was another's, UnavailableError."""


class KeyRing:
    """The keys of one database, in this process. :meth:`load` before its first use.

    ``services``: the deployment's own keys, the current one first; others only unwrap. ``accepts_plain``: texts from before the
    encryption are read as they are.
    """

    def __init__(self, services: Sequence[KeyService]) -> None:
        self.services = tuple(services)
        self.current = ""
        self.accepts_plain = False
        self._ciphers: dict[str, AESGCM] = {}
        self._secrets: dict[str, bytes] = {}
        self._deployment: DataKey | None = None
        self.own: DataKey | None = None
        self.hashes: HashKey | None = None
        self.data_keys: OrderedDict[str, DataKey] = OrderedDict()
        self.of_runs: OrderedDict[str, str] = OrderedDict()
        self.of_requests: OrderedDict[str, str] = OrderedDict()

    async def load(self, conn: Connection) -> None:
        """Read the ring and unwrap its keys. Raises ConfigurationError: none of the services can, or there is no ring."""
        rows = (await conn.look(_RING)).mappings().all()
        ring = sorted((row for row in rows if row["kind"] == "ring"), key=lambda row: (row["created_at"], row["id"]))
        if not ring:
            raise ConfigurationError(
                "a key is configured, but this database isn't encrypted: run `turngate keys init`, or unset the key"
            )
        for row in ring:
            if row["id"] not in self._ciphers:
                self._hold(row["id"], self._unwrapped(row["wrapped"], row["wrapped_by"]))
        self.current = ring[-1]["id"]
        for row in rows:
            if row["kind"] == PLAIN:
                self._unwrap(row["wrapped"], PLAIN)  # no one without the key can write it
                self.accepts_plain = True
            if row["kind"] == "deployment" and self._deployment is None:
                self._deployment = DataKey.of(DEPLOYMENT, self._unwrap(row["wrapped"], DEPLOYMENT))
                salt = os.urandom(SALT_BYTES)
                self.own = self._deployment.derived(DEPLOYMENT + salt.hex(), salt)
                self.hashes = HashKey(self.secret_for(b"hashes"))

    def _unwrapped(self, wrapped: str, by: str) -> bytes:
        service = next((each for each in self.services if each.name == by), None)
        if service is None:
            names = ", ".join(each.name for each in self.services)
            raise ConfigurationError(
                f"the database's content is encrypted with {by}, and this process has {names}: configure that key, "
                "as TURNGATE_FORMER_KEY_FILE if the keys are being rotated"
            )
        return service.unwrap(wrapped)

    def wrap(self, secret: bytes, owner: str) -> str:
        """Return a data key as the database holds it."""
        nonce = os.urandom(NONCE_BYTES)
        body = nonce + self._ciphers[self.current].encrypt(nonce, secret, owner.encode())
        return f"{self.current}:{base64.b64encode(body).decode()}"

    def knows(self, wrapped: str) -> bool:
        """Tell whether the ring's key that a data key is wrapped by was loaded."""
        return wrapped.partition(":")[0] in self._ciphers

    def _unwrap(self, wrapped: str, owner: str) -> bytes:
        by, _, body = wrapped.partition(":")
        try:
            raw = base64.b64decode(body, validate=True)
            return self._ciphers[by].decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], owner.encode())
        except (InvalidTag, ValueError, KeyError):
            raise UnreadableContentError(
                f"the data key of {owner!r} can't be unwrapped: it was changed in the database"
            ) from None

    def data_key(self, conversation: str, wrapped: str) -> DataKey:
        """Return a conversation's key. Raises UnreadableContentError."""
        return DataKey.of(conversation, self._unwrap(wrapped, conversation))

    def of_deployment(self, owner: str) -> DataKey:
        """Return the key of the deployment with this name. Raises UnreadableContentError."""
        if self._deployment is None:
            raise UnreadableContentError("the database has no key of the deployment any more")
        try:
            salt = bytes.fromhex(owner[len(DEPLOYMENT) :])
        except ValueError:
            raise UnreadableContentError("a text in the database is marked as encrypted, but is damaged") from None
        return self._deployment.derived(owner, salt)

    def secret_for(self, purpose: bytes) -> bytes:
        """Return a secret of the deployment for another purpose. It stays the same when keys rotate.

        Raises UnreadableContentError: the database has no key of the deployment any more.
        """
        if self._deployment is None:
            raise UnreadableContentError("the database has no key of the deployment any more")
        return hmac.digest(self._deployment.secret, purpose, "sha256")

    # Making and replacing the keys of the ring.

    async def create(self, conn: Connection) -> None:
        """Make the first keys of a database. Raises ConfigurationError: it has some.

        Precedents go: their features are hashes without a key, as numbers. The API adds them again, from the log.
        """
        if (await conn.execute(_RING)).first() is not None:
            raise ConfigurationError("this database is encrypted already: `turngate keys status` says with which key")
        await self.add(conn)
        secret = os.urandom(KEY_BYTES)
        await self._store(conn, "deployment", "deployment", self.wrap(secret, DEPLOYMENT), self.current)
        if (await conn.execute(_IN_USE)).first() is not None:
            await self._store(conn, PLAIN, PLAIN, self.wrap(os.urandom(KEY_BYTES), PLAIN), self.current)
        await conn.execute(delete(precedents))
        await self.load(conn)

    async def end_plain(self, conn: Connection) -> None:
        """Note that everything is encrypted: from its next start on, a process refuses plain text."""
        await conn.execute(delete(key_ring).where(key_ring.c.kind == PLAIN))

    async def add(self, conn: Connection) -> None:
        """Make a new key of the ring, which wraps data keys from now on, wrapped by the current service."""
        secret, new = os.urandom(KEY_BYTES), f"key_{os.urandom(6).hex()}"
        await self._store(conn, new, "ring", self.services[0].wrap(secret), self.services[0].name)
        self._hold(new, secret)
        self.current = new

    def _hold(self, key_id: str, secret: bytes) -> None:
        self._secrets[key_id] = secret
        self._ciphers[key_id] = AESGCM(secret)

    async def replace(self, conn: Connection) -> None:
        """Make a new key of the ring, and wrap the others by the current service, too, for processes that still use them."""
        await self.load(conn)
        service, former = self.services[0], dict(self._secrets)
        await self.add(conn)
        for key_id, secret in former.items():
            values = {"wrapped": service.wrap(secret), "wrapped_by": service.name}
            await conn.execute(update(key_ring).where(key_ring.c.id == key_id).values(**values))
        if self._deployment is not None:
            values = {"wrapped": self.wrap(self._deployment.secret, DEPLOYMENT), "wrapped_by": self.current}
            await conn.execute(update(key_ring).where(key_ring.c.kind == "deployment").values(**values))

    async def is_replaced(self, conn: Connection) -> bool:
        """Tell whether the newest key of the ring is the current service's, and some data key isn't wrapped by it yet."""
        by = await ring_of(conn)
        unfinished = select(conversations.c.id).where(~conversations.c.data_key.startswith(f"{self.current}:")).limit(1)
        return by[-1:] == [self.services[0].name] and (await conn.execute(unfinished)).first() is not None

    def new_data_key(self, conversation: str) -> str:
        """Return a new data key for a conversation that has none, as the database holds it."""
        return self.wrap(os.urandom(KEY_BYTES), conversation)

    def rewrapped(self, conversation: str, wrapped: str) -> str:
        """Return a conversation's data key wrapped by the current key of the ring."""
        return self.wrap(self._unwrap(wrapped, conversation), conversation)

    async def _store(self, conn: Connection, key_id: str, kind: str, wrapped: str, by: str) -> None:
        row = {"id": key_id, "kind": kind, "wrapped": wrapped, "wrapped_by": by, "created_at": as_text(now())}
        await conn.execute(_ADD, row)


def _remember(cache: OrderedDict[str, _T], name: str, value: _T) -> None:
    cache[name] = value
    cache.move_to_end(name)
    while len(cache) > MOST_KEYS:
        cache.popitem(last=False)


class Keys:
    """The keys as one transaction sees them. What it makes counts for others once it is committed (:meth:`keep`)."""

    def __init__(self, ring: KeyRing, conn: Connection) -> None:
        self._ring, self._conn = ring, conn
        self._new: dict[str, DataKey] = {}
        self._runs: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._without_key: set[str] = set()

    @property
    def deployment(self) -> DataKey:
        """What seals rows that belong to no single conversation."""
        if self._ring.own is None:
            raise UnreadableContentError("the database has no key of the deployment any more")
        return self._ring.own

    def secret_for(self, purpose: bytes) -> bytes:
        """Return a secret of the deployment, as :meth:`KeyRing.secret_for` does."""
        return self._ring.secret_for(purpose)

    @property
    def hashes(self) -> HashKey:
        """What hashes of content are kept under."""
        if self._ring.hashes is None:
            raise UnreadableContentError("the database has no key of the deployment any more")
        return self._ring.hashes

    def keep(self) -> None:
        """Let the process keep what was made: the transaction is committed."""
        for name, key in self._new.items():
            _remember(self._ring.data_keys, name, key)
        for run, conversation in self._runs.items():
            _remember(self._ring.of_runs, run, conversation)
        for request, run in self._requests.items():
            _remember(self._ring.of_requests, request, run)

    def learn(self, table: str, value: Value) -> None:
        """Note to which conversation a new run belongs, or to which run a new request."""
        known, of = (self._runs, "conversation_id") if table == "runs" else (self._requests, "run_id")
        if value("id") is not None and value(of) is not None:
            known[str(value("id"))] = str(value(of))

    def begin(self, conversation: str) -> str:
        """Make the key of a new conversation; returns it as the database holds it."""
        secret = os.urandom(KEY_BYTES)
        self._new[conversation] = DataKey.of(conversation, secret)
        return self._ring.wrap(secret, conversation)

    async def of_row(self, table: str, value: Value) -> DataKey:
        """Return the key of the conversation that a row belongs to; the deployment's, if the row's statement doesn't say."""
        conversation = await self._conversation(table, value)
        return self.deployment if conversation is None else await self._of_conversation(str(conversation))

    async def may_be_plain(self, table: str, value: Value) -> bool:
        """Tell whether a row's texts may be plain: not all is encrypted yet, or erasing left them. ``value``: of its columns."""
        if self._ring.accepts_plain:
            return True
        conversation = await self._conversation(table, value)
        if conversation is None:  # it belongs to none, or the result doesn't say to which
            return TEXT_COLUMNS[table].owner is not Owner.NONE
        return (await self._conn.look(_ERASED, {"conversation": conversation})).first() is not None

    async def _conversation(self, table: str, value: Value) -> str | None:
        """Return the conversation that a row belongs to; None: none, or its columns don't say."""
        conversation = value("conversation_id")
        if conversation is None:
            run = value("id") if table == "runs" else value("run_id")
            if run is None:
                request = value("id") if table == "requests" else value("request_id")
                run = None if request is None else await self._run_of(str(request))
            conversation = None if run is None else await self._conversation_of(str(run))
        return None if conversation is None else str(conversation)

    async def of_owner(self, owner: str) -> DataKey:
        """Return the key that a text in the database was sealed with. Raises UnreadableContentError."""
        if owner.startswith(DEPLOYMENT):
            own = self.deployment
            return own if own.owner == owner else self._ring.of_deployment(owner)
        key = self._known(owner)
        if key is None:
            wrapped = await self._wrapped(owner)
            if wrapped is None:
                raise UnreadableContentError(f"the data key of conversation {owner!r} is gone, and its content with it")
            key = await self._unwrapped(owner, wrapped)
        return key

    async def look_up(self, owners: Collection[str]) -> None:
        """Get the keys that the process doesn't have yet in one statement: a list has as many conversations as rows."""
        unknown = [each for each in owners if self._known(each) is None and not each.startswith(DEPLOYMENT)]
        if len(unknown) < 2:  # noqa: PLR2004 - one is looked up when it is used
            return
        for row in (await self._conn.look(_DATA_KEYS, {"ids": listed(unknown)})).all():
            if row.data_key is not None:
                await self._unwrapped(row.id, row.data_key)

    async def _of_conversation(self, conversation: str) -> DataKey:
        """Return a conversation's key; the deployment's for one that is older than the database's encryption.

        To give it a key here would lock its row in the middle of the caller's transaction. Others lock it first and then what
        this one has: a deadlock. ``turngate keys encrypt`` gives it one, in a transaction that locks nothing else.
        """
        key = self._known(conversation)
        if key is not None:
            return key
        if conversation in self._without_key:
            return self.deployment
        wrapped = await self._wrapped(conversation)
        if wrapped is not None:
            return await self._unwrapped(conversation, wrapped)
        self._without_key.add(conversation)
        return self.deployment

    def _known(self, conversation: str) -> DataKey | None:
        return self._new.get(conversation) or self._ring.data_keys.get(conversation)

    async def _wrapped(self, conversation: str) -> str | None:
        return (await self._conn.look(_DATA_KEY, {"conversation": conversation})).scalar_one_or_none()

    async def _unwrapped(self, conversation: str, wrapped: str) -> DataKey:
        if not self._ring.knows(wrapped):  # the keys are being rotated
            await self._ring.load(self._conn)
        key = self._ring.data_key(conversation, wrapped)
        _remember(self._ring.data_keys, conversation, key)
        return key

    async def _conversation_of(self, run: str) -> str | None:
        known = self._runs.get(run) or self._ring.of_runs.get(run)
        if known is None:
            known = (await self._conn.look(_OF_RUN, {"run": run})).scalar_one_or_none()
            if known is not None:
                self._runs[run] = known
        return known

    async def _run_of(self, request: str) -> str | None:
        known = self._requests.get(request) or self._ring.of_requests.get(request)
        if known is None:
            known = (await self._conn.look(_OF_REQUEST, {"request": request})).scalar_one_or_none()
            if known is not None:
                self._requests[request] = known
        return known
