"""A small KV layout, pools of plain bytes, and messages for it: what every test of the handoff starts from."""

import random
from collections.abc import Sequence
from typing import Any

from core.config import Codec, TransferConfig
from core.kvspec import KVGroup, KVSpec, Piece
from core.messages import Branch, Commit, Grant, Layer, Limits, Open, Sampling, Stages
from kvtransfer.moves import FirstTokens, HandoffKey, OpenRequest

BLOCK_TOKENS = 4
BLOCK_BYTES = 8
SPEC = KVSpec(groups=(KVGroup("full", (0, 1), BLOCK_TOKENS, BLOCK_BYTES),), layout="test", weights="none")
PREFILL, DECODE = "prefill-1", "decode-1"
CONFIG = TransferConfig(window=1024, frame=2 * BLOCK_BYTES)
KEY = HandoffKey(PREFILL, 1)
TOKENS = FirstTokens(
    index=0, branches=[Branch(0, [7])], sampling=Sampling(seed=1), limits=Limits(max_tokens=8),
    stages=Stages(prefill_ms=1.0),
)  # fmt: skip


class Pool:
    """A KVMemory of a byte array per layer."""

    def __init__(self, spec: KVSpec, blocks: int, seed: int | None = None) -> None:
        self.spec = spec
        self.layers: dict[tuple[int, int], bytearray] = {}
        for at, group in enumerate(spec.groups):
            for layer in group.layers:
                size = blocks * group.block_bytes
                content = bytes(size) if seed is None else random.Random(f"{seed}/{at}/{layer}").randbytes(size)
                self.layers[at, layer] = bytearray(content)

    def ready(self, group: int, layer: int, blocks: Sequence[int]) -> bool:
        return True

    def read(self, group: int, layer: int, blocks: Sequence[int], codec: Codec = "none") -> list[memoryview]:
        assert codec == "none", "bytes are not numbers"
        size = self.spec.groups[group].block_bytes
        whole = memoryview(self.layers[group, layer])
        views: list[memoryview] = []
        start = 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
                views.append(whole[blocks[start] * size : (blocks[end - 1] + 1) * size])
                start = end
        return views

    def write(self, group: int, layer: int, blocks: Sequence[int], payload: Sequence[memoryview | bytes]) -> None:
        size = self.spec.groups[group].block_bytes
        content = b"".join(payload)
        for at, block in enumerate(blocks):
            self.layers[group, layer][block * size : (block + 1) * size] = content[at * size : (at + 1) * size]

    def convert(self, piece: Piece, payload: Sequence[memoryview | bytes]) -> None:
        raise AssertionError("bytes are not numbers")

    def content(self, blocks: Sequence[Sequence[int]]) -> bytes:
        """All bytes of a sequence: group by group, layer by layer, block by block."""
        return b"".join(part for (group, layer) in self.layers for part in self.read(group, layer, blocks[group]))


def request(tokens: int = 10, **changes: Any) -> OpenRequest:
    """Ten tokens are three blocks, the last of them not full."""
    fields: dict[str, Any] = dict(
        request="r", samples=(0,), attempt=1, gateway="g", token_ids=list(range(tokens)), prompt_tokens=tokens,
        remaining_ms=60_000.0,
    )  # fmt: skip
    return OpenRequest(**(fields | changes))


def opening(**changes: Any) -> Open:
    fields: dict[str, Any] = dict(
        sender=PREFILL, receiver=DECODE, handoff=1, request="r", samples=(0,), attempt=1, gateway="g",
        token_ids=list(range(10)), prompt_tokens=10, remaining_ms=60_000.0, fingerprint=SPEC.fingerprint(),
        form=SPEC.form(),
    )  # fmt: skip
    return Open(**(fields | changes))


def layer(number: int, place: int, first: int, count: int, **changes: Any) -> Layer:
    fields: dict[str, Any] = dict(
        sender=PREFILL, receiver=DECODE, handoff=1, number=number, group=0, layer=place, first=first, count=count,
        offset=0, size=count * BLOCK_BYTES,
    )  # fmt: skip
    return Layer(**(fields | changes))


def commit(payloads: int, size: int, digest: int, **changes: Any) -> Commit:
    fields: dict[str, Any] = dict(
        sender=PREFILL, receiver=DECODE, handoff=1, payloads=payloads, size=size, digest=digest, offset=1 << 60,
        index=TOKENS.index,
        branches=TOKENS.branches, sampling=TOKENS.sampling, limits=TOKENS.limits, stages=TOKENS.stages,
    )  # fmt: skip
    return Commit(**(fields | changes))


def to_decode(kind: Any, **fields: Any) -> Any:
    """Abort or Aborted of the prefill side."""
    return kind(sender=PREFILL, receiver=DECODE, handoff=1, **fields)


def to_prefill(kind: Any, **fields: Any) -> Any:
    """Grant, Accepted, Refused, Abort or Aborted of the decode side."""
    return kind(**({"sender": DECODE, "receiver": PREFILL, "handoff": 1} | fields))


def grant(held: int = 0, limit: int = 1024) -> Grant:
    message = to_prefill(Grant, held=held, limit=limit)
    assert isinstance(message, Grant)
    return message
