"""The engine thread's loop: receive, plan, run, send. Both roles run it with their own `RolePolicy`."""

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Moves
from typing import Generic, Protocol

from contracts.errors import DeviceError
from contracts.messages.gateway import REASON_DRAINING
from contracts.messages.job import DecodeJob, PrefillJob
from engine.plan import BlockMove, StepPlan, StepResult
from engine.schedule.idle_steps import IdleSteps
from engine.schedule.scheduler import Scheduler
from worker.engine_rounds import EngineRounds, Event, RolePolicy
from worker.engine_status import PromptCounts
from worker.life import Life

MAX_IDLE_WAIT_S = 1.0  # longest wait of an idle loop before it checks deadlines; an event ends it
log = logging.getLogger("baton.worker")


class Runner(Protocol):
    """Runs plans. The implementation, `engine.executor.Executor`, loads torch."""

    def move(self, moves: Moves[BlockMove]) -> None:
        """Moves blocks, in order, between the steps launched before and after. Raises `DeviceError`."""

    def launch(self, plan: StepPlan) -> None:
        """Starts a step. Raises `DeviceError`."""

    def collect(self) -> StepResult:
        """Waits for the oldest launched step, and returns its result. Raises `DeviceError`."""


class EngineLoop(Generic[Event]):
    """Runs steps until it is asked to stop, and then until all work is done, at most `drain_seconds`."""

    def __init__(
        self,
        life: Life,
        executor: Runner,
        scheduler: Scheduler,
        policy: RolePolicy[Event],
        useful_threads: Callable[[int], int],
        depth: int,
        idle_steps: IdleSteps | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`useful_threads`: useful threads of a step, by its tokens. `depth`: launched steps before one is collected.

        `idle_steps` measures steps while there is no work, if not None. `monotonic` times them: the server's clock may
        jump by hours with the first answer of Redis.
        """
        self._life = life
        self._executor = executor
        self._scheduler = scheduler
        self._policy = policy
        self._rounds = EngineRounds(scheduler, policy, life.outbox.post)
        self._useful_threads = useful_threads
        self._depth = depth
        self._idle_steps = idle_steps
        self._monotonic = monotonic
        self._in_flight: deque[StepPlan] = deque()  # launched and not collected, oldest first
        self._leave_at: float | None = None  # server time, s, at which a draining worker gives up
        self._idle = True
        self._are_blocks_checked = False  # blocks were checked since the last step
        self._received = PromptCounts()  # prompts of received jobs
        self._is_load_stale = False  # the shown load lacks the last events
        self.error = ""  # why the loop ended, unless it was asked to

    def run(self) -> None:
        """Repeats receive, plan, run, send until the end. A `DeviceError` ends it, and is kept in `error`."""
        status = self._life.status
        try:
            while not self._over():
                self._receive()
                if self._life.adapters.has_unused():
                    self._life.adapters.free(self._policy.adapters())
                now = self._life.clock.now()
                status.enters("planning")
                plan, moves = self._rounds.plan(now, steps=not self._is_past_drain(now))
                if moves:
                    status.enters("moving blocks")
                    self._executor.move(moves)  # before KV lands in reassigned blocks
                self._rounds.admit(now)
                if self._is_load_stale and plan is not None:
                    self._show()  # the step may take long
                if plan is not None:
                    status.enters("launching a step")
                    self._are_blocks_checked = False
                    self._launch(plan)
                collected = bool(self._in_flight) and (plan is None or len(self._in_flight) == self._depth)
                if collected:
                    status.enters("collecting a step")
                    result = self._executor.collect()
                    self._in_flight.popleft()
                    status.step_ended()
                    status.enters("sending what a step gave")
                    self._rounds.collected(result, self._life.clock.now())
                    if self._idle_steps is not None:
                        self._idle_steps.stepped(self._monotonic())
                self._idle = plan is None and not collected  # collecting may have made another plan possible
                self._show()
        except DeviceError as error:
            self.error = str(error)
        status.enters("leaving")
        self._policy.leave("engine" if self.error else REASON_DRAINING)
        self._show()
        status.rests()

    def _launch(self, plan: StepPlan) -> None:
        self._life.busy.enter(self._useful_threads(sum(len(work.token_ids) for work in plan.works)))
        self._executor.launch(plan)
        self._in_flight.append(plan)

    def _show(self) -> None:
        self._life.status.shows(self._policy.load(), self._received)

    def _is_past_drain(self, now: float) -> bool:
        """Returns whether no step is planned any more: running steps are only collected."""
        return bool(self.error) or (self._leave_at is not None and now > self._leave_at)

    def _receive(self) -> None:
        if self._life.inbox.stopping:
            self._stop()  # before taking events: earlier events count
        wait = 0.0
        if self._idle:
            self._life.busy.leave()
            if not self._over():
                wait = min(MAX_IDLE_WAIT_S, max(0.0, self._scheduler.next_deadline - self._life.clock.now()))
                if self._idle_steps is not None and not self._policy.busy():
                    wait = min(wait, self._idle_steps.seconds_left(self._monotonic()))
        self._life.status.rests()
        events = self._life.inbox.take(wait)
        self._life.status.begins("taking events")
        if not events and self._idle and not self._are_blocks_checked and not self._policy.busy():
            self._scheduler.check_invariants()  # detects lost blocks when there is time
            self._are_blocks_checked = True
            log.debug("idle after %d steps: all blocks are accounted for", self._scheduler.load().steps)
        if not events and self._idle:
            self._measure()
        for event in events:
            self._policy.receive(event, self._life.clock.now())
            if isinstance(event, PrefillJob | DecodeJob):
                self._received = self._received.and_prompt(len(event.prompt.token_ids))
        self._is_load_stale = bool(events)

    def _measure(self) -> None:
        """Runs measuring steps if they are due. A new event waits only for the steps in flight."""
        clock, inbox, steps = self._monotonic, self._life.inbox, self._idle_steps
        if steps is None or self._policy.busy() or inbox.anything or steps.seconds_left(clock()):
            return
        self._life.status.enters("measuring steps")
        plans = deque(steps.begin(clock()))
        self._executor.move(self._scheduler.take_moves())
        collected = 0.0
        launched: deque[float] = deque()
        while plans or self._in_flight:
            while plans and len(self._in_flight) < self._depth:
                launched.append(clock())
                self._launch(plans.popleft())
            self._executor.collect()
            now = clock()
            steps.took(self._in_flight.popleft(), now - max(launched.popleft(), collected))
            collected = now
            if inbox.anything or steps.is_over(now):
                plans.clear()
        steps.end(clock())
        self._life.busy.leave()
        self._show()

    def _stop(self) -> None:
        """Starts draining, once. A later error ends the drain."""
        self.error = self._life.inbox.error
        if self._leave_at is not None:
            return
        log.info("stopping: running work has %.0f s to finish", self._life.config.drain_seconds)
        self._leave_at = self._life.clock.now() + self._life.config.drain_seconds
        self._life.status.draining = True

    def _over(self) -> bool:
        if self.error:
            return True
        if self._leave_at is None or self._in_flight:
            return False
        return not self._policy.busy() or self._life.clock.now() > self._leave_at
