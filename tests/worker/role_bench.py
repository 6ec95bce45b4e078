"""Gives a policy real scheduler and blocks, and writes its events down instead of carrying them out."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Moves
from typing import Any

from contracts.kv.spec import KVGroup, KVSpec
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.plan import BlockMove, StepPlan, StepResult
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from infra.config.engine import EngineConfig
from infra.config.transfer import TransferConfig
from infra.config.worker import WorkerConfig
from infra.redis.store import ServerClock
from tests.engine.strict_executor import score
from tests.kvtransfer.array_pool import ArrayPool
from worker.engine_loop import Runner
from worker.engine_status import EngineStatus
from worker.host.busy_page import BusyPage
from worker.life import Life
from worker.mailbox import Inbox, Outbox
from worker.role import WorkerParts

SPEC = KVSpec((KVGroup("full", (0, 1), 4, 64),), "layout", "weights")
WINDOWED = KVSpec((KVGroup("window", (1,), 4, 64, window=6), KVGroup("full", (0, 2), 4, 64)), "layout", "weights")
VOCABULARY_TOKENS = 200
SAMPLING, LIMITS = Sampling(1), Limits(10)


def prompted(tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Puts the fields of a prompt, where they are given, into one; by default the text begins like all others."""
    rest = dict(fields)
    token_ids = rest.pop("token_ids", None) or list(range(tokens))
    own = rest.pop("prompt_tokens", len(token_ids))
    return {"prompt": Prompt(token_ids, own, rest.pop("salt", ""), rest.pop("priority", 0)), **rest}


class Sevens:
    """Samples 7 everywhere, but for samples that have others; logits of the prompts in `fail` are not finite."""

    def __init__(self, others: dict[int, int] | None = None) -> None:
        self._others = others or {}
        self.launched: deque[StepPlan] = deque()
        self.steps = 0  # launched since the start
        self.most = 0  # steps in flight at once
        self.moves: list[BlockMove] = []
        self.fail: set[int] = set()

    def move(self, moves: Moves[BlockMove]) -> None:
        """Writes the moves down."""
        self.moves += moves

    def launch(self, plan: StepPlan) -> None:
        """Keeps the plan, of which nothing is computed."""
        self.launched.append(plan)
        self.steps += 1
        self.most = max(self.most, len(self.launched))

    def collect(self) -> StepResult:
        """Returns the tokens of the oldest step."""
        plan = self.launched.popleft()
        sampled = [number for number, work in enumerate(plan.works) if work.sampling is not None]
        failed = [number for number in sampled if plan.works[number].sequence in self.fail]
        tokens: list[list[int]] = [[] for _ in plan.works]
        for number in sampled:
            if number not in failed:
                tokens[number] = [self._others.get(sample, 7) for sample in plan.works[number].samples]
        result = StepResult(plan.step, tokens, failed, scores={}, prompt_scores={})
        for number, work in enumerate(plan.works):
            score(number, work, tokens[number], result)
        return result


class Watched(Scheduler):
    """Remembers which sequences it was given."""

    def __init__(self, blocks: BlockManager, limits: SchedulerLimits) -> None:
        super().__init__(blocks, limits)
        self.added: list[Sequence] = []

    def add(self, sequence: Sequence, branches: Iterable[Sequence] = ()) -> None:
        members = [sequence, *branches]
        super().add(sequence, members[1:])
        self.added += members


class Said(Outbox[Any]):
    """Writes down what is posted; nobody reads it."""

    def __init__(self) -> None:
        super().__init__(10)
        self.events: list[Any] = []

    def post(self, event: Any) -> None:
        self.events.append(event)


class Bench:
    """Makes the parts for a policy, and runs the engine loop a step at a time."""

    def __init__(
        self,
        blocks: int = 33,
        waiting_share: float = 0.5,
        executor: Runner | None = None,
        max_in_flight: int = 1,
        spec: KVSpec = SPEC,
    ) -> None:
        self.executor: Runner = executor or Sevens()
        self.spec = spec
        self.blocks = BlockManager(spec, [blocks] * len(spec.groups), ahead=16 * max_in_flight)
        self.scheduler = Watched(
            self.blocks,
            SchedulerLimits(max_batch_tokens=16, max_sequences=8, max_model_len=256, max_in_flight=max_in_flight),
        )
        config = WorkerConfig(
            engine=EngineConfig(model="m"), transfer=TransferConfig(waiting_share=waiting_share), inbox=10
        )
        outbox = Said()
        self.said = outbox.events
        busy = BusyPage("", 1, lambda threads: None)
        self.life = Life(config, "me", ServerClock(), EngineStatus(), Inbox(10), outbox, busy)
        self.parts = WorkerParts(
            self.life, spec, ArrayPool(spec, blocks), VOCABULARY_TOKENS, self.scheduler, self.blocks
        )

    def launch(self, policy: Any, now: float = 1.0) -> StepPlan | None:
        """Plans and starts a step, as the engine loop does."""
        plan = self.scheduler.plan(now)
        self.executor.move(self.scheduler.take_moves())
        policy.admitted(self.scheduler.take_admitted(), now)
        if plan is not None:
            self.executor.launch(plan)
            layer_written = getattr(policy, "layer_written", lambda *_: None)
            for group, each in enumerate(self.spec.groups):
                for layer in each.layers:
                    layer_written(plan, group, layer)
        self.scheduler.check_invariants()
        return plan

    def collect(self, policy: Any, now: float = 1.0) -> None:
        """Takes over the oldest step that was started."""
        policy.progressed(self.scheduler.apply(self.executor.collect(), now), now)
        self.scheduler.check_invariants()

    def step(self, policy: Any, now: float = 1.0) -> StepPlan | None:
        """Plans, runs and applies a step; returns None where there is nothing to compute."""
        plan = self.launch(policy, now)
        if plan is not None:
            self.collect(policy, now)
        return plan

    def run(self, policy: Any, now: float = 1.0) -> int:
        """Steps until there is nothing to compute; returns how many steps it took."""
        steps = 0
        while self.step(policy, now) is not None:
            steps += 1
        return steps

    def heard(self, kind: type) -> list[Any]:
        """Takes the events of one kind out of what was said."""
        found = [event for event in self.said if isinstance(event, kind)]
        self.said[:] = [event for event in self.said if not isinstance(event, kind)]
        return found
