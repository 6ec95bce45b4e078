"""Tests that sealed frames open once, in order, in their own session, and as they were, whatever their size."""

import pytest

from contracts.errors import SealError
from kvtransfer.transports.sockets.channel import SendBuffers
from kvtransfer.transports.sockets.seal import (
    MAX_KEPT_BUFFER_BYTES,
    NONCE_BYTES,
    SALT_HALF_BYTES,
    TAG_BYTES,
    FrameOpener,
    FrameSealer,
    seal_digest,
    session_key,
)

KEY = session_key(b"a deployment's secret", (bytes(SALT_HALF_BYTES), bytes(SALT_HALF_BYTES)), ("p", "d"))
HEADER = b"a header"


def sealed(sealer: FrameSealer, payload: bytes) -> tuple[bytes, memoryview]:
    parts = [memoryview(payload)] if payload else []
    return sealer.seal(HEADER, parts, memoryview(bytearray(len(payload) + TAG_BYTES)))


@pytest.mark.parametrize("size", [0, 1, 1000, MAX_KEPT_BUFFER_BYTES + 1])
def test_a_payload_of_any_size_opens(size: int) -> None:
    sealer, opener = FrameSealer(KEY), FrameOpener(KEY)
    for payload in (b"", b"\7" * size, b"", b"\1" * size):
        nonce, frame = sealed(sealer, payload)
        assert bytes(opener.open(nonce, HEADER, frame)) == payload


def test_parts_are_one_payload() -> None:
    sealer, opener = FrameSealer(KEY), FrameOpener(KEY)
    nonce, frame = sealer.seal(HEADER, [memoryview(b"ab"), memoryview(b"cd")], memoryview(bytearray(4 + TAG_BYTES)))
    assert bytes(opener.open(nonce, HEADER, frame)) == b"abcd" and b"ab" not in bytes(frame)


def test_frames_open_once_and_in_order() -> None:
    sealer, opener = FrameSealer(KEY), FrameOpener(KEY)
    frames = [sealed(sealer, bytes([number])) for number in range(4)]
    assert bytes(opener.open(frames[0][0], HEADER, frames[0][1])) == b"\0"
    assert bytes(opener.open(frames[2][0], HEADER, frames[2][1])) == b"\2"
    for nonce, frame in (frames[2], frames[1], frames[0]):
        with pytest.raises(SealError, match="of the past"):
            opener.open(nonce, HEADER, frame)
    assert bytes(opener.open(frames[3][0], HEADER, frames[3][1])) == b"\3", "a refused frame moves nothing"


@pytest.mark.parametrize("what", ["header", "payload", "tag", "nonce", "cut", "empty", "long nonce"])
def test_what_was_altered_does_not_open(what: str) -> None:
    sealer, opener = FrameSealer(KEY), FrameOpener(KEY)
    nonce, frame = sealed(sealer, b"payload")
    spoiled, header = bytearray(frame), HEADER
    match what:
        case "header":
            header = b"another"
        case "payload":
            spoiled[0] ^= 1
        case "tag":
            spoiled[-1] ^= 1
        case "nonce":
            nonce = (5).to_bytes(NONCE_BYTES, "little")
        case "cut":
            del spoiled[-1]
        case "empty":
            spoiled.clear()
        case "long nonce":
            nonce = bytes(1000)
    with pytest.raises(SealError):
        opener.open(nonce, header, memoryview(spoiled))


@pytest.mark.parametrize(
    "key",
    [
        session_key(b"another's secret", (bytes(SALT_HALF_BYTES), bytes(SALT_HALF_BYTES)), ("p", "d")),
        session_key(b"a deployment's secret", (b"\1" * SALT_HALF_BYTES, bytes(SALT_HALF_BYTES)), ("p", "d")),
        session_key(b"a deployment's secret", (bytes(SALT_HALF_BYTES), b"\1" * SALT_HALF_BYTES), ("p", "d")),
        session_key(b"a deployment's secret", (bytes(SALT_HALF_BYTES), bytes(SALT_HALF_BYTES)), ("p2", "d")),
        session_key(b"a deployment's secret", (bytes(SALT_HALF_BYTES), bytes(SALT_HALF_BYTES)), ("p", "d2")),
    ],
    ids=["secret", "sender's half", "receiver's half", "sender", "receiver"],
)
def test_another_sessions_frame_does_not_open(key: bytes) -> None:
    nonce, frame = sealed(FrameSealer(KEY), b"payload")
    with pytest.raises(SealError, match="not sealed for this session"):
        FrameOpener(key).open(nonce, HEADER, frame)


def test_what_stands_for_a_payload_follows_its_tag() -> None:
    (_, one), (_, other) = sealed(FrameSealer(KEY), b"one"), sealed(FrameSealer(KEY), b"two")
    assert seal_digest(one) != seal_digest(other)


def test_a_buffer_is_used_again_when_the_socket_is_done() -> None:
    class Tracker:
        done = False

    buffers, tracker = SendBuffers(), Tracker()
    first = buffers.take(100)
    buffers.lend(first, tracker)  # type: ignore[arg-type]
    assert buffers.take(100) is not first
    tracker.done = True
    assert buffers.take(80) is first
