"""Ranks on one host exchange tensors through memory that they share, and wake each other by Unix sockets.

Each rank has two slots in the memory, which it fills in turn. When a rank has heard of the others' exchange k + 1, they
have read exchange k, since each reads before it goes on; the slot of exchange k is free again. A socket between two
ranks carries one byte for each exchange. Its end of file says at once that a rank has died.
"""

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from itertools import combinations
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from contracts.errors import RankError
from engine.parallel.shard import Shard
from engine.parallel.sums import tree_sum

SLOT_BYTES = 4 << 20
SLOTS_OF_RANK = 2
SILENCE_S = 60.0
"""Seconds after which a rank that sends nothing counts as hanging."""
SPIN_S = 100e-6
"""Seconds that a rank looks for another's byte before it sleeps: between two sums ranks compute as long, and a sleeping
thread wakes late."""
MAX_SPINS_SKIPPED = 64
"""Waits for a rank that begin with sleep after looking for its byte was in vain, again and again. Where cores are short
the other rank cannot send: it waits for the core on which this rank looks."""
WAKE_BYTE = b"\0"


class RankWires(NamedTuple):
    """File descriptors by which one rank reaches the others, to be inherited by its process."""

    memory: int
    sockets: dict[int, int]  # by the other rank


def make_wires(ranks: int) -> list[RankWires]:
    """Makes the shared memory and a socket between each two ranks; the caller closes the descriptors."""
    memory = os.memfd_create("baton-ranks")
    os.ftruncate(memory, ranks * SLOTS_OF_RANK * SLOT_BYTES)
    wires = [RankWires(os.dup(memory), {}) for _ in range(ranks)]
    os.close(memory)
    for left, right in combinations(range(ranks), 2):
        here, there = socket.socketpair()
        wires[left].sockets[right], wires[right].sockets[left] = here.detach(), there.detach()
    return wires


def timeval(seconds: float) -> bytes:
    """Returns a `struct timeval` of the system's."""
    whole, part = divmod(int(1e6 * seconds), 1_000_000)
    return struct.pack("@ll", whole, part)


class SharedMemoryCollective:
    """Sums, gathers and broadcasts tensors of a CPU; sums are made in fp32."""

    def __init__(self, shard: Shard, wires: RankWires, silence_s: float = SILENCE_S) -> None:
        """Takes over the descriptors of `wires`. A rank that is silent for `silence_s` seconds counts as hanging."""
        self._shard = shard
        self._silence_s = silence_s
        size = shard.ranks * SLOTS_OF_RANK * SLOT_BYTES
        self._memory = torch.frombuffer(mmap.mmap(wires.memory, size), dtype=torch.uint8)
        self._slots = self._memory.view(shard.ranks, SLOTS_OF_RANK, SLOT_BYTES)
        os.close(wires.memory)
        self._sockets = {rank: socket.socket(fileno=number) for rank, number in wires.sockets.items()}
        for each in self._sockets.values():  # Python's own timeouts ask the system before each call whether it waits
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(silence_s))
        self._spins = {rank: _Spin() for rank in self._sockets}
        self._exchanges = 0

    def all_reduce(self, own: Tensor) -> Tensor:
        """Writes the sum into `own`: in new memory, whose pages the system clears, 2 MiB took ten times as long."""
        total = own.contiguous().view(-1)
        step = SLOT_BYTES // own.itemsize
        for begin in range(0, len(total), step):
            piece = total[begin : begin + step]
            found = self._exchange(piece, [len(piece)] * self._shard.ranks)
            tree_sum([each.float() for each in found], piece)
        return total.view(own.shape)

    def shared_buffer(self, numbers: int) -> Tensor | None:
        if numbers * torch.float32.itemsize > SLOT_BYTES:
            return None
        return self._next_slot().view(torch.float32)[:numbers]

    def shared_parts(self, numbers: int) -> list[Tensor]:
        return self._exchange(self._next_slot().view(torch.float32)[:numbers], [numbers] * self._shard.ranks)

    def all_gather(self, own: Tensor, widths: Sequence[int]) -> Tensor:
        joined = own.new_empty((len(own), sum(widths)))
        rows = SLOT_BYTES // (max(widths) * own.itemsize)
        for begin in range(0, len(own), rows):
            piece = own[begin : begin + rows]
            found = self._exchange(piece.reshape(-1), [len(piece) * width for width in widths])
            columns = [each.view(len(piece), width) for each, width in zip(found, widths, strict=True)]
            torch.cat(columns, 1, out=joined[begin : begin + rows])
        return joined

    def broadcast(self, tensor: Tensor) -> Tensor:
        given, received = tensor.reshape(-1), torch.empty(tensor.numel(), dtype=tensor.dtype)
        step, others = SLOT_BYTES // tensor.itemsize, [0] * (self._shard.ranks - 1)
        for begin in range(0, len(given), step):
            piece = given[begin : begin + step]
            own = piece if self._shard.rank == 0 else piece[:0]
            received[begin : begin + step] = self._exchange(own, [len(piece), *others])[0]
        return received.view(tensor.shape)

    def barrier(self) -> None:
        self._exchange(self._memory[:0], [0] * self._shard.ranks)

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()

    def _next_slot(self) -> Tensor:
        """Returns this rank's slot of the next exchange; all ranks have read its earlier content."""
        return self._slots[self._shard.rank, self._exchanges % SLOTS_OF_RANK]

    def _exchange(self, own: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Returns views of all ranks' values, `counts` of each, which are valid until the next exchange."""
        slots = self._slots[:, self._exchanges % SLOTS_OF_RANK]
        self._exchanges += 1
        if own.data_ptr() != slots[self._shard.rank].data_ptr():
            slots[self._shard.rank, : own.numel() * own.itemsize] = own.contiguous().view(torch.uint8)
        for rank, peer in self._sockets.items():
            try:
                peer.send(WAKE_BYTE)
            except OSError:
                raise RankError(f"rank {rank} has ended") from None
        for rank, peer in self._sockets.items():
            self._wait_for(rank, peer)
        return [slot[: count * own.itemsize].view(own.dtype) for slot, count in zip(slots, counts, strict=True)]

    def _wait_for(self, rank: int, peer: socket.socket) -> None:
        """Receives the byte of another rank. Raises `RankError` if it has ended, or sends none in time."""
        try:
            woken = self._spins[rank].look(peer)
            if woken is None:
                woken = peer.recv(1)
        except BlockingIOError:
            raise RankError(f"rank {rank} has sent nothing for {self._silence_s:g} s") from None
        except OSError:
            woken = b""
        if not woken:
            raise RankError(f"rank {rank} has ended")


class _Spin:
    """Looks for a rank's byte for a while before this rank sleeps, unless that has been in vain lately."""

    def __init__(self) -> None:
        self._to_skip = 0  # waits
        self._in_a_row = 1  # waits to skip after the next one in vain

    def look(self, peer: socket.socket) -> bytes | None:
        """Returns the next byte, none at the end of the stream, or None if nothing came in `SPIN_S`."""
        if self._to_skip:
            self._to_skip -= 1
            return _taken(peer)
        end = perf_counter() + SPIN_S
        while (woken := _taken(peer)) is None and perf_counter() < end:
            os.sched_yield()  # to a rank that waits for this core
        self._in_a_row = 1 if woken is not None else min(MAX_SPINS_SKIPPED, 2 * self._in_a_row)
        self._to_skip = 0 if woken is not None else self._in_a_row
        return woken


def _taken(peer: socket.socket) -> bytes | None:
    """Returns the next byte, none at the end of the stream, or None if nothing has come yet."""
    try:
        return peer.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
