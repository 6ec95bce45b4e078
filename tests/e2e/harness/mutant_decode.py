"""A decode worker that lands KV wrongly on purpose, to show that the golden test would see it.

`python -m tests.e2e.harness.mutant_decode` takes a decode worker's options; `MUTATION` in the environment says
what is wrong.
"""

import os
import sys
from collections.abc import Callable, Sequence

from contracts.kinds import Codec
from contracts.kv.spec import KVSpec, PayloadConversion
from decode_service.__main__ import role
from infra.cli import parse_or_exit
from infra.config.worker import WorkerConfig
from kvtransfer.memory import KVMemory
from worker.role import Role, WorkerParts
from worker.start import serve

Write = tuple[int, list[int], bytes]  # layer, blocks, payload


class MutantMemory:
    """Writes everything as it should, then spoils it."""

    def __init__(self, memory: KVMemory, spec: KVSpec, mutation: str) -> None:
        self._memory = memory
        self.devices = memory.devices
        self.counts = memory.counts
        self.descriptors: tuple[int, ...] = ()  # not shared: all KV passes through `write`
        self._spec = spec
        self._mutation = mutation
        self._first: dict[tuple[int, int], Write] = {}  # by layer and size, for the swap

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return self._memory.ready(group, layer, blocks)

    def begin_read(
        self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none"
    ) -> Callable[[], list[memoryview]]:
        return self._memory.begin_read(group, layer, blocks, codec)

    def landed(self, group: int, layer: int, blocks: Sequence[int]) -> list[memoryview]:
        return self._memory.landed(group, layer, blocks)

    def convert(self, piece: PayloadConversion, payload: Sequence[memoryview | bytes]) -> None:
        """As it is: both workers' blocks are of one form."""
        self._memory.convert(piece, payload)

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        data = bytearray(b"".join(bytes(part) for part in payload))
        size = self._spec.groups[group].block_bytes
        match self._mutation:
            # One token, or one block, of every text: which text lands first is chance, and not each changes by it.
            case "token" if layer == 1:
                self._zero_token(data, size, self._spec.groups[group].block_tokens)
            case "block" if layer == 1:
                data[:size] = bytes(size)
            case "layer" if layer == 1:
                data[:] = bytes(len(data))
            case "swap":
                self._swap(group, layer, list(blocks), bytes(data))
                return
        self._memory.write(group, layer, blocks, [bytes(data)])

    @staticmethod
    def _zero_token(data: bytearray, block_bytes: int, block_tokens: int) -> None:
        """The first token's V of the first head of the first block: half of a head is K, half V."""
        half = block_bytes // 2 // 2  # this spec has two KV heads
        row = half // block_tokens
        for part in (0, half):
            data[part : part + row] = bytes(row)

    def _swap(self, group: int, layer: int, blocks: list[int], data: bytes) -> None:
        before = self._first.pop((layer, len(data)), None)
        if before is None:
            self._first[layer, len(data)] = (layer, blocks, data)
            self._memory.write(group, layer, blocks, [data])
        else:
            self._memory.write(group, layer, before[1], [data])
            self._memory.write(group, layer, blocks, [before[2]])


def mutant(parts: WorkerParts) -> Role:
    return role(parts._replace(memory=MutantMemory(parts.memory, parts.spec, os.environ["MUTATION"])))


if __name__ == "__main__":
    sys.exit(serve("decode", parse_or_exit(WorkerConfig, "decode_service"), mutant))
