"""What differs between prefill and decode workers: a policy on the engine thread, a transfer on the I/O thread."""

from collections.abc import Callable
from typing import Any, NamedTuple

from contracts.errors import MessageError
from contracts.kv.spec import KVSpec
from engine.blocks.manager import BlockManager
from engine.plan import StepPlan
from engine.schedule.scheduler import Scheduler
from kvtransfer.memory import KVMemory
from worker.engine_loop import RolePolicy
from worker.life import Life
from worker.transfer import MakeTransfer


class WorkerParts(NamedTuple):
    """The parts of a worker that a role uses."""

    life: Life
    spec: KVSpec
    memory: KVMemory  # access to the pool's bytes, for the transfer
    vocab_size: int  # exclusive upper bound of token ids
    scheduler: Scheduler
    blocks: BlockManager


def check_tokens(token_ids: list[int], vocab_size: int) -> None:
    """Raises `MessageError` for ids outside the vocabulary, which would fail a whole step."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise MessageError(f"token ids from {min(token_ids)} to {max(token_ids)}, the vocabulary has {vocab_size}")


class Role(NamedTuple):
    """A role's policy, transfer, and hook for written layers."""

    policy: RolePolicy[Any]
    make_transfer: MakeTransfer
    layer_written: Callable[[StepPlan, int, int], None] | None  # called with plan, KV group and layer
