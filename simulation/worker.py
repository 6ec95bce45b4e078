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
from engine.schedule.chunking import Chunking
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from infra.redis.records import Role
from pricing.fit import StepFit
from simulation.deployment import SimulatedDevice
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
        self, timeline: Timeline, epoch: str, role: Role, device: SimulatedDevice, around: WorkerSurroundings
    ) -> None:
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
        self.blocks = BlockManager(self.spec, [device.blocks + 1], ahead=device.step_tokens, changes=KeyChanges())
        self.scheduler = Scheduler(
            self.blocks,
            SchedulerLimits(
                max_batch_tokens=device.step_tokens,
                max_sequences=device.max_sequences,
                max_model_len=device.max_model_len,
                growth_reserve=[ceil(GROWTH_SHARE * group.total) for group in self.blocks.groups],
            ),
            chunking=Chunking(device.step_target_s, 1 / device.costs.prompt_token if device.costs.known else 0.0),
            fit=StepFit(device.costs),
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
        self._in_step = False
        self._round_is_due = False
        self._show()

    def post(self, event: Any) -> None:
        """Posts an event to the engine; it waits for the end of the running step."""
        self._inbox.append(event)
        self._wake()

    def take(self, job: AnyJob, ticket: Ticket) -> None:
        """Takes a job from the worker's stream."""
        self.status.posted = self.status.posted.and_prompt(len(job.prompt.token_ids))
        self.taken = ticket
        self.post(job)

    def busy(self) -> bool:
        return self._in_step or bool(self._inbox) or self.policy.busy()

    def die(self) -> None:
        self.alive = False

    def _wake(self) -> None:
        if not self._in_step and not self._round_is_due and self.alive:
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
        self._in_step = True
        seconds = self.device.seconds(self.scheduler.launched_work)
        self.step_seconds += seconds
        if self._prefill is not None:
            layers = self.spec.groups[0].layers
            for layer in layers[:-1]:
                written = partial(self._written, self._prefill, plan, layer)
                self._timeline.after(seconds * (layer + 1) / len(layers), written)
        self._timeline.after(seconds, partial(self._collect, plan))

    def _written(self, policy: PrefillPolicy, plan: StepPlan, layer: int) -> None:
        if self.alive:
            policy.layer_written(plan, 0, layer)

    def _collect(self, plan: StepPlan) -> None:
        if not self.alive:
            return
        self._in_step = False
        if self._prefill is not None:
            self._prefill.layer_written(plan, 0, self.spec.groups[0].layers[-1])
        tokens = [[DRAWN_TOKEN] * len(work.samples) if work.sampling is not None else [] for work in plan.works]
        self._rounds.collected(StepResult(plan.step, tokens), self._timeline.now)
        self._round()

    def _show(self) -> None:
        self.status.shows(self.policy.load(), self._received)
