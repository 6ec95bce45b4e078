"""The difference between prefill and decode workers: a policy on the engine thread, a transfer on the I/O thread."""

from collections.abc import Callable
from typing import Any, NamedTuple

from contracts.kv.spec import KVSpec
from engine.blocks.manager import BlockManager
from engine.plan import StepPlan
from engine.schedule.scheduler import Scheduler
from kvtransfer.memory import KVMemory
from worker.engine_rounds import RolePolicy
from worker.life import Life
from worker.policy_parts import PolicyParts
from worker.transfer import MakeTransfer


class WorkerParts(NamedTuple):
    """The parts of a worker that a role uses."""

    life: Life
    spec: KVSpec
    memory: KVMemory  # access to the pool's bytes, for the transfer
    vocab_size: int  # exclusive upper bound of token ids
    scheduler: Scheduler
    blocks: BlockManager

    def of_policy(self) -> PolicyParts:
        life, share = self.life, self.life.config.transfer.waiting_share
        clock, tell_io, adapters = life.clock, life.outbox.post, life.adapters
        return PolicyParts(clock, tell_io, adapters, share, self.spec, self.vocab_size, self.scheduler, self.blocks)


class Role(NamedTuple):
    """A role's policy, transfer, and hook for written layers."""

    policy: RolePolicy[Any]
    make_transfer: MakeTransfer
    layer_written: Callable[[StepPlan, int, int], None] | None  # called with plan, KV group and layer
