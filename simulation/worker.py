"""A simulated worker: the real scheduler, block manager and role's policy, with steps that last what a device says."""

from functools import partial
from math import ceil
from typing import Any, Protocol

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.job import AnyJob
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from engine.plan import StepPlan, StepResult
from engine.schedule.admission import GROWTH_SHARE
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from infra.redis.records import Role
from simulation.deployment import SimulatedDevice
from simulation.repeated_steps import RepeatedChunking, RepeatedFit, RepeatedSteps, Repeats
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
DRAWN_TOKEN = 1


class ModelAlone:
    """The adapters of a simulated worker: the model alone."""

    def has(self, digest: str) -> bool:
        return not digest


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
        """`most_repeats`: decode steps that are one event at most."""
        self.epoch = epoch
        self.role = role
        self.device = device
        self.spec = device.spec()
        self.taken: Ticket = NO_TICKET
        self.keys = KeyLog()
        self.alive = True
        self.step_seconds = 0.0
        """Sum over all steps: how long the device was busy."""
        self._timeline = timeline
        self._most_repeats = most_repeats
        self._step: RepeatedSteps | None = None  # that runs
        repeats = self._repeats = Repeats(device.pause_s)
        rate = 1 / device.costs.prompt_token if device.costs.known else 0.0
        self._chunking = RepeatedChunking(repeats, device.step_target_s, rate)
        self.blocks = BlockManager(self.spec, [device.blocks + 1], ahead=device.step_tokens, changes=KeyChanges())
        self.scheduler = Scheduler(
            self.blocks,
            SchedulerLimits(
                max_batch_tokens=device.step_tokens,
                max_sequences=device.max_sequences,
                max_model_len=device.max_model_len,
                growth_reserve=[ceil(GROWTH_SHARE * group.total) for group in self.blocks.groups],
            ),
            chunking=self._chunking,
            fit=RepeatedFit(repeats, device.seed()),
        )
        post = partial(around.posted, self)
        clock = SimulatedClock(timeline)
        parts = PolicyParts(
            clock, post, ModelAlone(), WAITING_SHARE, self.spec, VOCABULARY, self.scheduler, self.blocks
        )
        self._prefill = PrefillPolicy(parts) if role == "prefill" else None
        self.policy: PrefillPolicy | DecodePolicy = self._prefill or DecodePolicy(parts)
        self._rounds: EngineRounds[Any] = EngineRounds(self.scheduler, self.policy, post)
        self.status = EngineStatus(monotonic=timeline.clock)
        self._received = PromptCounts()
        self._inbox: list[Any] = []
        self._round_is_due = False
        self._show()

    def post(self, event: Any) -> None:
        """Posts an event to the engine; it waits for the end of the running step."""
        self._inbox.append(event)
        if self._step is not None and self._step.cut(self._timeline.now):
            self._timeline.at(self._step.ends, partial(self._collect, self._step))
        self._wake()

    def take(self, job: AnyJob, ticket: Ticket) -> None:
        """Takes a job from the worker's stream."""
        self.status.posted = self.status.posted.and_prompt(len(job.prompt.token_ids))
        self.taken = ticket
        self.post(job)

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
        events, self._inbox = self._inbox, []
        for event in events:
            self.policy.receive(event, now)
            if isinstance(event, AnyJob):
                self._received = self._received.and_prompt(len(event.prompt.token_ids))
        plan, _ = self._rounds.plan(now)  # moving blocks takes no time
        self._rounds.admit(now)
        self._show()
        if plan is not None:
            self._begin(plan, now)
        elif (due := self.scheduler.next_deadline) < float("inf"):
            self._timeline.at(due, self._wake)

    def _begin(self, plan: StepPlan, now: float) -> None:
        work = self.scheduler.launched_work
        count = 1
        if self._most_repeats > 1 and not work.prompt_tokens:
            budget = self._chunking.budget(self.device.step_tokens - work.sequences)
            most = min(self._most_repeats, 1 + budget // work.sequences)
            count = self.scheduler.steps_to_next_end(most)
        step = self._step = RepeatedSteps(plan, work, count, now, self.device)
        if self._prefill is not None:
            layers = self.spec.groups[0].layers
            for layer in layers[:-1]:
                written = partial(self._written, self._prefill, plan, layer)
                self._timeline.after(step.each_s * (layer + 1) / len(layers), written)
        self._timeline.at(step.ends, partial(self._collect, step))

    def _written(self, policy: PrefillPolicy, plan: StepPlan, layer: int) -> None:
        if self.alive:
            policy.layer_written(plan, 0, layer)

    def _collect(self, step: RepeatedSteps) -> None:
        if not self.alive or step is not self._step or self._timeline.now < step.ends:
            return
        self._step = None
        self.step_seconds += step.busy_s
        plan = step.plan
        if self._prefill is not None:
            self._prefill.layer_written(plan, 0, self.spec.groups[0].layers[-1])
        drawn = [DRAWN_TOKEN] * step.count
        tokens = [drawn * len(work.samples) if work.sampling is not None else [] for work in plan.works]
        self._repeats.count = step.count
        self._rounds.collected(StepResult(plan.step, tokens), self._timeline.now)
        if self.device.pause_s:
            self._round_is_due = True
            self._timeline.after(self.device.pause_s, self._round)
        else:
            self._round()

    def _show(self) -> None:
        self.status.shows(self.policy.load(), self._received)
