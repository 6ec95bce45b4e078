"""Copies are exact, and do not hold other threads up."""

import sys
import threading

import pytest

from infra.memory.unlocked_copy import MIN_UNLOCKED_BYTES, copy_bytes, joined

COPY_COUNT = 1000  # copies in which another thread gets a turn, if it can have one at all


@pytest.mark.parametrize("size", [0, 1, MIN_UNLOCKED_BYTES - 1, MIN_UNLOCKED_BYTES, 3 * MIN_UNLOCKED_BYTES + 5])
def test_a_copy_has_the_same_bytes_and_touches_no_others(size: int) -> None:
    source = bytes(at * 7 % 251 for at in range(size))
    target = bytearray(b"\xaa" * (size + 2))
    copy_bytes(memoryview(target)[1:-1], memoryview(source))
    assert target == b"\xaa" + source + b"\xaa"


def test_sizes_have_to_be_equal() -> None:
    with pytest.raises(ValueError, match="could not broadcast"):
        copy_bytes(memoryview(bytearray(2 * MIN_UNLOCKED_BYTES)), memoryview(bytes(MIN_UNLOCKED_BYTES)))


@pytest.mark.parametrize("sizes", [[5], [0, 3], [MIN_UNLOCKED_BYTES, 7, 2 * MIN_UNLOCKED_BYTES]])
def test_parts_are_joined_in_their_order(sizes: list[int]) -> None:
    parts = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
    assert joined([parts[0], *(memoryview(part) for part in parts[1:])]) == b"".join(parts)


@pytest.mark.parametrize("work", ["copy", "join"])
def test_another_thread_runs_during_a_copy(work: str) -> None:
    """The interpreter takes its lock from no thread here, so a copy has to give it away."""
    source, target = memoryview(bytes(8 << 20)), memoryview(bytearray(8 << 20))
    ran, gate = threading.Event(), threading.Lock()

    def other() -> None:
        with gate:
            ran.set()

    gate.acquire()
    thread = threading.Thread(target=other)
    interval = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1000.0)
        gate.release()
        for _ in range(COPY_COUNT):
            if work == "copy":
                copy_bytes(target, source)
            else:
                joined([target, source])
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
