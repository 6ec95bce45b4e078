"""A role's policy with real scheduler and blocks, and the I/O thread's events written down instead of carried out."""

from typing import Any

from core.config import EngineConfig, TransferConfig, WorkerConfig
from core.kvspec import KVGroup, KVSpec
from core.messages import Limits, Sampling
from core.store import ServerClock
from engine.blocks import BlockManager
from engine.plan import BlockMove, Plan, StepResult
from engine.scheduler import Progress, Scheduler
from worker.role import Parts

SPEC = KVSpec((KVGroup("full", (0, 1), 4, 64),), "layout", "weights")
VOCABULARY = 200
SAMPLING, LIMITS = Sampling(1), Limits(10)


class Bench:
    """Parts for a policy, and a step at a time; every sampled token is 7."""

    def __init__(self, blocks: int = 33, waiting_share: float = 0.5) -> None:
        self.said: list[Any] = []
        self.moves: list[BlockMove] = []
        self.blocks = BlockManager(SPEC, blocks)
        self.scheduler = Scheduler(self.blocks, max_batch_tokens=16, max_sequences=8, max_model_len=256)
        config = WorkerConfig(
            engine=EngineConfig(model="m"), transfer=TransferConfig(waiting_share=waiting_share), inbox=10
        )
        self.parts = Parts(config, "me", SPEC, VOCABULARY, self.scheduler, self.blocks, ServerClock(), self.said.append)

    def step(self, policy: Any, now: float = 1.0) -> Plan | None:
        """Plan, run, apply, as the engine loop does."""
        plan = self.scheduler.plan(now)
        self.moves += self.scheduler.take_moves()
        policy.admitted(self.scheduler.take_admitted(), now)
        if plan is not None:
            layer_written = getattr(policy, "layer_written", lambda *_: None)
            for layer in SPEC.groups[0].layers:
                layer_written(plan, 0, layer)
            tokens = [[7] * len(work.samples) if work.sampling is not None else [] for work in plan.works]
            progress: list[Progress] = self.scheduler.apply(StepResult(plan.step, tokens), now)
            policy.progressed(progress, now)
        self.scheduler.check_invariants()
        return plan

    def heard(self, kind: type) -> list[Any]:
        """Takes the events of one kind out of what was said."""
        found = [event for event in self.said if isinstance(event, kind)]
        self.said[:] = [event for event in self.said if not isinstance(event, kind)]
        return found
