"""A simulated worker: the real scheduler, block manager and role's policy, with steps as long as its device says."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, inf
from typing import Any, Protocol

from msgspec import structs

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.job import AnyJob
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from engine.plan import BlockMove, StepPlan
from engine.schedule.admission import GROWTH_SHARE
from engine.schedule.chunking import Chunking
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from infra.redis.records import Role
from infra.redis.worker_load import WorkerLoad
from pricing.rates import move_seconds, worth_bringing_back
from pricing.routes.backlog import Backlog
from pricing.step_costs.fit import StepFit
from simulation.deployment import SimulatedDevice
from simulation.drafts import DrawnResults
from simulation.repeated_steps import RepeatedSteps
from simulation.timeline import SimulatedClock, Timeline
from worker.engine_rounds import EngineRounds
from worker.engine_status import EngineStatus, PromptCounts
from worker.gateways.key_log import KeyLog
from worker.policy_parts import PolicyParts
from worker.roles.decode import DecodePolicy
from worker.roles.prefill import PrefillPolicy

WAITING_SHARE = 0.5
"""Share of a prefill worker's pool that may wait for one decode worker: the default of `TransferConfig`."""
VOCABULARY = 1 << 31


class WorkerSurroundings(Protocol):
    """Takes what a worker's engine posts to its I/O thread."""

    def posted(self, worker: "SimulatedWorker", event: Any) -> None:
        """Takes an event for a gateway or for the other end of a handoff."""


class SimulatedWorker:
    """One life of a worker. A round begins when an event comes to an idle engine, or when a step has ended."""

    def __init__(
        self,
        timeline: Timeline,
        epoch: str,
        role: Role,
        device: SimulatedDevice,
        around: WorkerSurroundings,
        most_repeats: int = 1,
    ) -> None:
        """`most_repeats`: largest number of decode steps that are one event."""
        self.epoch = epoch
        self.role = role
        self.device = device
        self.spec = device.spec()
        self.taken: Ticket = NO_TICKET
        self.keys = KeyLog()
        self.alive = True
        self.step_seconds = 0.0
        """Sum over all steps: how long the device was busy."""
        self.before_change: Callable[[float], None] = _unwatched
        """Called with the time, s, before a change of anything that the worker tells gateways."""
        self._timeline = timeline
        drafts = device.drafts if role == "decode" else None
        self._drafts = drafts
        alike = role == "decode" and drafts is None  # a step with drafts is like no other
        self._most_repeats = most_repeats if alike else 1
        self._results = DrawnResults(drafts, epoch)
        self._step: RepeatedSteps | None = None  # the running step
        rates = device.start_rates
        self._block_bytes = self.spec.groups[0].layers_bytes()
        worth = partial(
            worth_bringing_back,
            block_bytes=self._block_bytes,
            block_tokens=device.block_tokens,
            rates=rates,
        )
        counts, changes = [device.blocks + 1], KeyChanges()
        self.blocks = BlockManager(self.spec, counts, device.host_blocks, worth, device.step_tokens, changes)
        self._moved_at = 0.0  # s, when all blocks so far have moved to or from the host's memory
        fit = StepFit(device.seed())
        self.scheduler = Scheduler(
            self.blocks,
            SchedulerLimits(
                max_batch_tokens=device.step_tokens,
                max_sequences=device.max_sequences,
                max_model_len=device.max_model_len,
                growth_reserve=[ceil(GROWTH_SHARE * group.total) for group in self.blocks.groups],
                shorter=device.shorter_share,
            ),
            chunking=Chunking(device.step_target_s, rates.prompt_tokens_per_second),
            fit=fit,
            speculation=drafts.speculation(self.blocks, fit) if drafts is not None else None,
        )
        post = partial(around.posted, self)
        clock = SimulatedClock(timeline)
        parts = PolicyParts(
            clock, post, device.adapters, WAITING_SHARE, self.spec, VOCABULARY, self.scheduler, self.blocks
        )
        self._prefill = PrefillPolicy(parts) if role == "prefill" else None
        self.policy: PrefillPolicy | DecodePolicy = self._prefill or DecodePolicy(parts)
        self._rounds: EngineRounds[Any] = EngineRounds(self.scheduler, self.policy, post)
        self._told_at = timeline.now  # time of the figures in its status, s
        self.status = EngineStatus(monotonic=lambda: self._told_at)
        self._received = PromptCounts()
        self._inbox: list[Any] = []
        self._round_is_due = False
        self._looks_at = inf  # s, of the planned look at deadlines; an action for each would outlive its request
        self._round_at = timeline.now
        self._shown = False  # whether `status` has the load of the last round

    def post(self, event: Any) -> None:
        """Posts an event to the engine; it waits for the end of the running step."""
        self._inbox.append(event)
        step = self._step
        if step is not None and step.cut(self._timeline.now):
            self._timeline.at(step.due, partial(self._collect, step))
        self._wake()

    def take(self, job: AnyJob, ticket: Ticket) -> None:
        """Takes a job from the worker's stream."""
        self.before_change(self._timeline.now)
        self.status.posted = self.status.posted.and_prompt(len(job.prompt.token_ids))
        self.taken = ticket
        self.post(job)

    def backlog(self, at: float) -> Backlog:
        """Returns the backlog that the worker told a gateway `at` a time, s; the worker has not changed since then."""
        self._told_at = at
        if self._shown:
            backlog = self.status.backlog()
        else:
            backlog = self.status.with_posted(self.scheduler.backlog(), self._received, self._round_at)
        step = self._step
        if step is None or not (ended := step.ended(at)):
            return backlog
        return structs.replace(
            backlog,
            context=backlog.context + ended * backlog.sequences,
            free_blocks=backlog.free_blocks - self.scheduler.blocks_for(ended),
            age_ms=1000 * (at - step.ended_at(ended)),
        )

    def told(self) -> EngineStatus:
        """Returns the status as of the last round; the load is summed up at the first call after a round."""
        if not self._shown:
            self.status.shows(self.policy.load(), self._received, self._round_at)
            self._shown = True
        return self.status

    def load(self) -> WorkerLoad:
        """Returns the load in the worker's record. Its totals of steps and tokens are as of the last result."""
        load, step = self.told().load, self._step
        if step is None or not (ended := step.ended(self._timeline.now)):
            return load
        self.scheduler.learn(*step.untold(ended))
        used = load.blocks_used + self.scheduler.blocks_for(ended)
        return structs.replace(load, blocks_used=used, costs=self.scheduler.costs)

    def end(self) -> None:
        """Ends the worker's life amid its work. Tokens of steps that have ended still reach the gateway."""
        step = self._step
        if step is not None and (computed := step.computed(self._timeline.now)):
            step.end_behind(computed)
            self._apply(step)
        self.alive = False

    def busy(self) -> bool:
        return self._step is not None or bool(self._inbox) or self.policy.busy()

    def _wake(self) -> None:
        if self._step is None and not self._round_is_due and self.alive:
            self._round_is_due = True
            self._timeline.after(0.0, self._round)

    def _round(self) -> None:
        self._round_is_due = False
        if not self.alive:
            return
        now = self._timeline.now
        self.before_change(now)
        events, self._inbox = self._inbox, []
        for event in events:
            self.policy.receive(event, now)
            if isinstance(event, AnyJob):
                self._received = self._received.and_prompt(len(event.prompt.token_ids))
        plan, moves = self._rounds.plan(now)
        if moves and self.device.host_blocks:
            self._move(moves, now)
        self._rounds.admit(now)
        self._round_at, self._shown = now, False
        if plan is not None:
            self._begin(plan, now)
        elif (due := self.scheduler.next_deadline) < self._looks_at:
            self._looks_at = due
            self._timeline.at(due, self._look)

    def _look(self) -> None:
        self._looks_at = inf
        self._wake()

    def _move(self, moves: Sequence[BlockMove], now: float) -> None:
        """Adds the time of moves to and from the host's memory; copies within the pool take no time."""
        blocks = sum([move.kind != "copy" for move in moves])
        if blocks:
            self._moved_at = max(now, self._moved_at) + move_seconds(blocks, self._block_bytes, self.device.start_rates)

    def _begin(self, plan: StepPlan, now: float) -> None:
        waits, now = self._moved_at > now, max(now, self._moved_at)
        work = self.scheduler.launched_work
        beside_s = self.device.adapters.step_seconds(plan)
        proposing_s = self._drafts.proposing_s(plan) if self._drafts is not None else 0.0
        count = 1 if waits else self.scheduler.repeat(self._most_repeats)
        if self.device.pause_s and count > 1:
            count -= 1  # no answer ends, so that the result may wait for the pause
        step = self._step = RepeatedSteps(plan, work, count, now, self.device, beside_s, proposing_s)
        if self._prefill is not None:
            layers = self.spec.groups[0].layers
            for layer in layers[:-1]:
                written = partial(self._written, self._prefill, plan, layer)
                self._timeline.at(now + (step.ends - now) * (layer + 1) / len(layers), written)
        self._timeline.at(step.due, partial(self._collect, step))

    def _written(self, policy: PrefillPolicy, plan: StepPlan, layer: int) -> None:
        if self.alive:
            policy.layer_written(plan, 0, layer)

    def _collect(self, step: RepeatedSteps) -> None:
        if not self.alive or step is not self._step or self._timeline.now < step.due:
            return
        self.before_change(self._timeline.now)
        self._apply(step)
        if step.next_at > step.due:
            self._round_is_due = True
            self._timeline.at(step.next_at, self._round)
        else:
            self._round()

    def _apply(self, step: RepeatedSteps) -> None:
        self._step = None
        self.step_seconds += step.busy_s
        if step.next_at > step.due:
            self.told()  # in the pause gateways are told the load during the step
        if self._prefill is not None:
            self._prefill.layer_written(step.plan, 0, self.spec.groups[0].layers[-1])
        if step.count > 1:
            self.scheduler.learn(*step.untold(step.count))
        self._rounds.collected(self._results.of(step.plan, step.count, step.proposing_s), step.ends)


def _unwatched(now: float) -> None:
    """Does nothing: no gateway knows the worker yet."""
