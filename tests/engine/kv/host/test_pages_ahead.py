"""Pages are there before blocks are used, and not long before."""

import ctypes
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.kv.host import pages_ahead
from engine.kv.host.pages_ahead import PagesAhead

LAYERS, BLOCKS, BLOCK_BYTES = 3, 4096, 1 << 13
LAYER_BYTES = BLOCKS * BLOCK_BYTES
BYTES_AHEAD = 6 << 20  # 256 blocks of all layers


def make(ahead: int = BYTES_AHEAD) -> tuple[mmap.mmap, PagesAhead]:
    memory = mmap.mmap(-1, LAYERS * LAYER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # so that pages are counted one by one
    return memory, PagesAhead(memory, LAYERS, BLOCKS, BLOCK_BYTES, ahead)


def present(memory: mmap.mmap) -> list[int]:
    """Blocks of each layer, from its beginning on, whose pages are there: bit 63 of the process's page map."""
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(base // mmap.PAGESIZE * 8)
        entries = memoryview(pagemap.read(LAYERS * LAYER_BYTES // mmap.PAGESIZE * 8)).cast("Q")
    per_layer = LAYER_BYTES // mmap.PAGESIZE
    found = []
    for layer in range(LAYERS):
        there = [entry >> 63 for entry in entries[layer * per_layer : (layer + 1) * per_layer]]
        count = there.index(0) if 0 in there else per_layer
        assert not any(there[count:]), "pages behind a gap"
        found.append(count * mmap.PAGESIZE // BLOCK_BYTES)
    return found


def settle() -> None:
    """Waits until what was reached is done."""
    while workers := [each for each in threading.enumerate() if each.name == "pages-ahead"]:
        workers[0].join()


def test_nothing_is_there_before_it_is_reached() -> None:
    memory, _ = make()
    assert present(memory) == [0] * LAYERS


def test_the_first_blocks_are_there_when_the_start_is_over() -> None:
    memory, ahead = make()
    ahead.begin()
    assert present(memory) == [1 + 256] * LAYERS
    ahead.reach(1)
    settle()
    assert present(memory) == [257] * LAYERS, "more than half of them are left"


def test_a_pool_smaller_than_what_is_made_ahead_is_there_as_a_whole() -> None:
    memory, ahead = make(2 * LAYERS * LAYER_BYTES)
    ahead.begin()
    assert present(memory) == [BLOCKS] * LAYERS


def test_the_next_blocks_of_every_layer_are_there_and_no_more() -> None:
    memory, ahead = make()
    ahead.reach(1)
    settle()
    assert present(memory) == [2 + 256] * LAYERS
    ahead.reach(100)  # more than half of them are left
    settle()
    assert present(memory) == [258] * LAYERS
    ahead.reach(1000)
    settle()
    assert present(memory) == [1001 + 256] * LAYERS
    ahead.reach(5)  # behind
    settle()
    assert present(memory) == [1257] * LAYERS


def test_it_ends_with_the_pool() -> None:
    memory, ahead = make()
    ahead.reach(BLOCKS - 1)
    settle()
    assert present(memory) == [BLOCKS] * LAYERS


def test_what_is_in_memory_stays() -> None:
    memory, ahead = make()
    memory[:] = bytes(range(256)) * (len(memory) // 256)
    ahead.reach(BLOCKS - 1)
    settle()
    assert memory[:] == bytes(range(256)) * (len(memory) // 256)


def test_a_kernel_that_does_not_know_how_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, "POPULATE_WRITE", 9999)
    memory, ahead = make()
    ahead.reach(1)
    settle()
    monkeypatch.undo()
    ahead.reach(1000)
    settle()
    assert present(memory) == [0] * LAYERS


def test_the_thread_that_makes_pages_holds_locks_at_nobodys_mercy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower priority than others it would keep Python's lock, and the mapping's, while they take its turns."""
    seen: set[int] = set()
    madvise = pages_ahead._madvise

    def watched(*arguments: Any) -> int:
        seen.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return int(madvise(*arguments))

    monkeypatch.setattr(pages_ahead, "_madvise", watched)
    _, ahead = make()
    ahead.reach(1)
    settle()
    assert seen == {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.parametrize(
    ("block_bytes", "groups", "blocks"), [(2 << 20, 1, 256), (2 << 20, 2, 128), (32 << 10, 1, 2048)]
)
def test_a_small_models_pages_ahead_are_bounded_in_blocks(block_bytes: int, groups: int, blocks: int) -> None:
    assert pages_ahead.bytes_ahead(block_bytes, groups) == blocks * block_bytes
