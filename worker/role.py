"""Defines what makes a worker a prefill or a decode worker: a policy on one thread, a transfer on the other."""

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
    """Holds the worker's parts that a role is made of."""

    life: Life
    spec: KVSpec
    memory: KVMemory  # the pool's bytes, for the transfer
    vocab_size: int  # token ids are below it
    scheduler: Scheduler
    blocks: BlockManager


def check_tokens(token_ids: list[int], vocab_size: int) -> None:
    """Raises `MessageError` if the model lacks one of the ids: it would fail a whole step, not one request."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise MessageError(f"token ids from {min(token_ids)} to {max(token_ids)}, the vocabulary has {vocab_size}")


class Role(NamedTuple):
    """Holds a role's policy, its side of the handoff, and what it wants to know of each layer."""

    policy: RolePolicy[Any]
    make_transfer: MakeTransfer
    layer_written: Callable[[StepPlan, int, int], None] | None  # called with the step's plan, KV group and layer
