"""What Temporal gets of an encrypted store's runs can be read with that store's keys, and with no others."""

from __future__ import annotations

import pytest
from support.stores.encryption import encrypted
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from turngate.domain.errors import UnreadableContentError
from turngate.runtime.key_services import SecretKey, new_key
from turngate.runtime.payload_codec import SealedPayloads
from turngate.runtime.temporal_client import codec_of, data_converter
from turngate.store.database import Database
from turngate.store.encryption import rewrite
from turngate.store.encryption.key_ring import KeyRing
from turngate.store.tables import key_ring

PLANTED = "the owner's name is Ximena"


async def another_process(database: Database, *services: SecretKey) -> SealedPayloads:
    ring = KeyRing(services)
    async with database.read() as conn:
        await ring.load(conn)
    return SealedPayloads(ring)


async def test_payloads_are_read_by_every_process_of_the_store_also_after_a_rotation(sqlite: Database) -> None:
    """Nothing of a value or its metadata is readable; each process has a key of its own; the deployment's own key may change."""
    former, current = (SecretKey.of(new_key(), "a test's key") for _ in range(2))
    ring = await encrypted(sqlite, former)
    codec = codec_of(sqlite)
    assert isinstance(codec, SealedPayloads)
    [sealed, again] = await data_converter(codec).encode([{"reason": PLANTED}, {"reason": PLANTED}])
    assert sealed.metadata["encoding"] == b"binary/encrypted"
    assert sealed.metadata["encryption-key-id"].startswith(codec.key_id.encode())
    assert b"Ximena" not in sealed.SerializeToString()
    assert b"json/plain" not in sealed.SerializeToString()
    assert sealed.data != again.data
    second = await another_process(sqlite, former)
    [other] = await second.encode([Payload(data=b"x")])
    assert other.metadata["encryption-key-id"] != sealed.metadata["encryption-key-id"]
    assert [each.data for each in await codec.decode([other])] == [b"x"]
    assert await rewrite.rotate(sqlite, KeyRing([current, former])) == rewrite.Rotation(0, is_new=True)
    later = await another_process(sqlite, current)
    assert await data_converter(later).decode([sealed], [dict]) == [{"reason": PLANTED}]
    assert ring.secret_for(b"another purpose") != ring.secret_for(b"turngate temporal payloads 1")


async def test_a_payload_from_before_encryption_is_read_as_it_is(sqlite: Database) -> None:
    """Runs that were waiting when encryption was switched on continue."""
    await encrypted(sqlite)
    old = await data_converter().encode([{"run_id": "run_1"}])
    assert await data_converter(codec_of(sqlite)).decode(old, [dict]) == [{"run_id": "run_1"}]


async def test_another_key_and_no_key_are_named(sqlite: Database) -> None:
    """The error says which key is missing, and what to set; it is the same in a process without any key."""
    await encrypted(sqlite)
    codec = codec_of(sqlite)
    assert isinstance(codec, SealedPayloads)
    [sealed] = await data_converter(codec).encode(["x"])
    stranger = KeyRing([SecretKey.of(new_key(), "a test's key")])
    async with sqlite.write() as conn:
        await conn.execute(key_ring.delete())  # as the database of another deployment
        await stranger.create(conn)
    with pytest.raises(UnreadableContentError, match=rf"with the key {codec.key_id}, and this process has the key"):
        await SealedPayloads(stranger).decode([sealed])
    with pytest.raises(
        UnreadableContentError, match=rf"with the key {codec.key_id}, and this process has no key.*KEY_FILE"
    ):
        await data_converter().decode([sealed], [str])


@pytest.mark.parametrize(
    "change", ["bit", "cut", "empty", "salt", "no salt", "long salt", "not hex", "no name", "not ascii"]
)
async def test_a_payload_that_was_changed_is_an_error(sqlite: Database, change: str) -> None:
    """Someone who can write to Temporal gets no text of their own decrypted, and no other error than ours."""
    await encrypted(sqlite)
    codec = codec_of(sqlite)
    assert isinstance(codec, SealedPayloads)
    [sealed] = await codec.encode([Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')])
    body, name = sealed.data, sealed.metadata["encryption-key-id"]
    key = codec.key_id.encode()
    forged = {
        "bit": (body[:-1] + bytes([body[-1] ^ 1]), name),
        "cut": (body[:20], name),
        "empty": (b"", name),
        "salt": (body, name[:-1] + (b"0" if name[-1:] != b"0" else b"1")),
        "no salt": (body, key),
        "long salt": (body, key + b"." + b"00" * 5_000),
        "not hex": (body, key + b"." + b"zz" * 12),
        "no name": (body, b""),
        "not ascii": (body, b"\xff" * 30),
    }[change]
    payload = Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": forged[1]}, data=forged[0])
    with pytest.raises(UnreadableContentError):
        await codec.decode([payload])


def fail(error: ApplicationError, cause: BaseException) -> None:
    raise error from cause


async def test_messages_and_stacks_of_failures_are_encrypted_causes_included(sqlite: Database) -> None:
    """A failure that came from Temporal and is passed on keeps its own encrypted message."""
    await encrypted(sqlite)
    converter = data_converter(codec_of(sqlite))
    first, second = Failure(), Failure()
    try:
        fail(ApplicationError(PLANTED, "overloaded", type="model_error"), ValueError(f"because {PLANTED}"))
    except ApplicationError as error:
        await converter.encode_failure(error, first)
    assert b"Ximena" not in first.SerializeToString()
    assert b"test_payload_codec" not in first.SerializeToString()  # the stack
    assert first.message == first.cause.message == "Encoded failure"
    assert first.application_failure_info.type == "model_error"
    read = await converter.decode_failure(first)
    assert isinstance(read, ApplicationError)
    assert (read.message, read.details, str(read.cause)) == (PLANTED, ("overloaded",), f"ValueError: because {PLANTED}")
    assert "fail" in str(read.failure.stack_trace if read.failure else "")
    await converter.encode_failure(read, second)
    assert b"Ximena" not in second.SerializeToString()
    again = await converter.decode_failure(second)
    assert (str(again), str(again.__cause__)) == (str(read), str(read.__cause__))


@pytest.mark.parametrize("text", ["x" * 100_000, "汉" * 50_000, "\x01" * 50_000, '"\\' * 50_000, "a\ud800" * 9_000])
async def test_an_encrypted_failure_stays_below_the_size_at_which_temporal_replaces_it(
    sqlite: Database, text: str
) -> None:
    """4 KiB is the limit, also where JSON makes six characters of one, and with many causes."""
    await encrypted(sqlite)
    converter = data_converter(codec_of(sqlite))
    cause: BaseException = ValueError("root")
    for number in range(30):
        error = ApplicationError(f"cause {number}", "detail")
        error.__cause__ = cause
        cause = error
    for error in (ApplicationError(text, "server_error", type="model_error"), cause):
        failure = Failure()
        error.__cause__ = error.__cause__ or ValueError(text)
        await converter.encode_failure(error, failure)
        assert failure.ByteSize() <= 4_000
        read = await converter.decode_failure(failure)
        assert isinstance(read, ApplicationError)
        assert read.message[:3] in {text[:3], "a??"[:3], "cau", "a\ufffda"}
