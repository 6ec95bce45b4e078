"""A round of a worker's engine without threads, tensors and clocks: plans a step, and passes on its result.

`worker.engine_loop` drives it on the engine thread; a simulation drives it by its own time.
"""

from collections.abc import Callable
from collections.abc import Sequence as Moves
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from engine.plan import BlockMove, StepPlan, StepResult
from engine.schedule.progress import SequenceProgress
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from infra.redis.worker_load import WorkerLoad
from worker.events import KeysChanged

Event = TypeVar("Event", contravariant=True)


class RolePolicy(Protocol[Event]):
    """A role's part of the loop, on the engine thread. `now`: Redis server time, s."""

    def receive(self, event: Event, now: float) -> None:
        """Takes an event of the I/O thread."""

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        """Called with sequences that got their first blocks."""

    def progressed(self, progress: list[SequenceProgress], now: float) -> None:
        """Takes a step's results for sequences."""

    def expired(self, sequences: list[Sequence], now: float) -> None:
        """Ends sequences past their deadlines."""

    def leave(self, reason: str) -> None:
        """Fails all remaining samples for `reason`, because the worker stops."""

    def busy(self) -> bool:
        """Whether any unfinished work is here."""

    def load(self) -> WorkerLoad:
        """Returns the worker's load and totals."""

    def adapters(self) -> set[str]:
        """Returns the digests of the adapters in use."""


class PlannedRound(NamedTuple):
    """The next step, if any, and the blocks to move before it starts and before KV lands anywhere."""

    plan: StepPlan | None
    moves: Moves[BlockMove]


class EngineRounds(Generic[Event]):
    """Passes time and results to the scheduler, and their effects to the role's policy. `now`: Redis server time, s."""

    def __init__(self, scheduler: Scheduler, policy: RolePolicy[Event], tell_io: Callable[[Any], None]) -> None:
        self._scheduler = scheduler
        self._policy = policy
        self._tell_io = tell_io

    def plan(self, now: float, *, steps: bool = True) -> PlannedRound:
        """Ends sequences past their deadlines, and plans a step unless `steps` is false."""
        self._policy.expired(self._scheduler.expired(now), now)
        plan = self._scheduler.plan(now) if steps else None
        return PlannedRound(plan, self._scheduler.take_moves())

    def admit(self, now: float) -> None:
        """Tells gateways changed keys, and the policy admitted sequences, whose blocks' moves are done."""
        if (changed := self._scheduler.take_key_changes()) is not None:
            self._tell_io(KeysChanged(*changed))
        self._policy.admitted(self._scheduler.take_admitted(), now)

    def collected(self, result: StepResult, now: float) -> None:
        self._policy.progressed(self._scheduler.apply(result, now), now)
