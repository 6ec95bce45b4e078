"""Makes a small KV layout, pools of plain bytes, and messages for it: every test of the handoff starts from here."""

import math
import random
from collections.abc import Sequence
from typing import Any

from contracts.kinds import Codec
from contracts.kv.spec import KVGroup, KVSpec, PayloadConversion
from contracts.messages.gateway import Stages
from contracts.messages.handoff import Branch, Commit, Grant, Layer, Open
from contracts.messages.job import PrefillJob, Prompt
from contracts.messages.packed_ids import packed
from contracts.messages.sampling import Limits, Sampling
from infra.config.transfer import TransferConfig
from kvtransfer.events import CommitHandoff, OpenHandoff
from kvtransfer.handoff import HandoffKey
from tests.opens import open_of

BLOCK_TOKENS = 4
BLOCK_BYTES = 8
SPEC = KVSpec(groups=(KVGroup("full", (0, 1), BLOCK_TOKENS, BLOCK_BYTES),), layout="test", weights="none")
PREFILL, DECODE = "prefill-1", "decode-1"
CONFIG = TransferConfig(window=1024, frame=2 * BLOCK_BYTES)
KEY = HandoffKey(PREFILL, 1)
SAMPLING, LIMITS = Sampling(seed=1), Limits(max_tokens=8)
TOKENS = CommitHandoff(1, [Branch(0, [7])], Stages(prefill_ms=1.0), computed_at=math.inf)
"""Ends the computation of handoff 1's prompt, at whatever moment it is told."""


class Pool:
    """Has a byte array per layer, which is read and written as a `KVMemory` is."""

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

    def convert(self, piece: PayloadConversion, payload: Sequence[memoryview | bytes]) -> None:
        raise AssertionError("bytes are not numbers")

    def content(self, blocks: Sequence[Sequence[int]]) -> bytes:
        """Returns all bytes of a sequence: group by group, layer by layer, block by block."""
        return b"".join(part for (group, layer) in self.layers for part in self.read(group, layer, blocks[group]))


def prompt(tokens: int = 10, salt: str = "", priority: int = 0) -> Prompt:
    """Makes a prompt. Ten tokens are three blocks, the last of them not full."""
    return Prompt(list(range(tokens)), tokens, salt, priority)


def opened(
    tokens: int = 10,
    *,
    handoff: int = 1,
    samples: tuple[int, ...] = (0,),
    deadline: float = 60.0,
    blocks: tuple[list[int], ...] = (),
    salt: str = "",
    priority: int = 0,
    **job: Any,
) -> OpenHandoff:
    """Makes the event with which the engine asks for a handoff of a prompt; `job` are fields of its job."""
    fields: dict[str, Any] = {
        "request": "r",
        "attempt": 1,
        "sender": "g",
        "receiver": PREFILL,
        "prompt": prompt(tokens, salt, priority),
        "sampling": SAMPLING,
        "limits": LIMITS,
        "deadline": 0.0,
        "queued_at": 0.0,
        "samples": samples,
        "decode_epoch": DECODE,
        "decode_address": "tcp://127.0.0.1:1",
    }
    made = PrefillJob(**(fields | job))
    return OpenHandoff(handoff, made, packed(made.prompt.token_ids), samples, deadline, deadline, blocks)


def opening(**changes: Any) -> Open:
    fields: dict[str, Any] = {
        "sender": PREFILL,
        "receiver": DECODE,
        "handoff": 1,
        "request": "r",
        "samples": (0,),
        "attempt": 1,
        "gateway": "g",
        "prompt": prompt(),
        "remaining_ms": 60_000.0,
        "due_ms": 300.0,
        "fingerprint": SPEC.fingerprint(),
        "form": SPEC.form(),
    }
    return open_of(**(fields | changes))


def layer(number: int, place: int, first: int, count: int, **changes: Any) -> Layer:
    fields: dict[str, Any] = {
        "sender": PREFILL,
        "receiver": DECODE,
        "handoff": 1,
        "number": number,
        "group": 0,
        "layer": place,
        "first": first,
        "count": count,
        "offset": 0,
        "size": count * BLOCK_BYTES,
    }
    return Layer(**(fields | changes))


def commit(payloads: int, size: int, digest: int, **changes: Any) -> Commit:
    fields: dict[str, Any] = {
        "sender": PREFILL,
        "receiver": DECODE,
        "handoff": 1,
        "payloads": payloads,
        "size": size,
        "digest": digest,
        "offset": 1 << 60,
        "index": 0,
        "branches": TOKENS.branches,
        "sampling": SAMPLING,
        "limits": LIMITS,
        "stages": TOKENS.stages,
    }
    return Commit(**(fields | changes))


def to_decode(kind: Any, **fields: Any) -> Any:
    """Makes the prefill side's Abort or Aborted."""
    return kind(sender=PREFILL, receiver=DECODE, handoff=1, **fields)


def to_prefill(kind: Any, **fields: Any) -> Any:
    """Makes the decode side's Grant, Accepted, Refused, Abort or Aborted."""
    return kind(**({"sender": DECODE, "receiver": PREFILL, "handoff": 1} | fields))


def grant(held: int = 0, limit: int = 1024) -> Grant:
    message = to_prefill(Grant, held=[held], limit=limit)
    assert isinstance(message, Grant)
    return message
