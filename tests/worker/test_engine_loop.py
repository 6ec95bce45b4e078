"""Checks that the loop goes on while there is work, sleeps when there is none, and ends when it is told."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from contracts.errors import DeviceError
from contracts.messages.job import DecodeJob, Prompt
from contracts.messages.sampling import Limits
from engine.plan import StepPlan, StepResult
from engine.schedule.idle_steps import DECODE_STEPS, IdleSteps
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from infra.redis.store import ServerClock
from pricing.step_costs.fit import StepFit
from pricing.step_costs.steps import StepCosts
from tests.waiting import DEADLINE_S
from tests.worker.role_bench import SAMPLING, Bench, Sevens
from worker.engine_loop import EngineLoop
from worker.engine_status import EngineStatus
from worker.events import Emit, Fail
from worker.mailbox import Inbox, MailboxFull
from worker.roles.decode import DecodePolicy


class StepClock(ServerClock):
    """Tells a time that passes only in steps: each takes a second, or as long as it is told."""

    def __init__(self, runner: Sevens, seconds: float = 1.0) -> None:
        super().__init__()
        self._runner = runner
        self._seconds = seconds

    def now(self) -> float:
        return 1.0 + self._seconds * self._runner.steps


def job(number: int, tokens: int = 5) -> DecodeJob:
    return DecodeJob(
        request=f"r{number}",
        attempt=1,
        sender="gateway",
        receiver="me",
        prompt=Prompt([1, 2, 3], 3),
        sampling=SAMPLING,
        limits=Limits(tokens),
        deadline=1e12,
        queued_at=0.0,
    )


def make_loop(
    bench: Bench,
    runner: Sevens,
    inbox: Inbox[object],
    *,
    scheduler: Scheduler | None = None,
    status: EngineStatus | None = None,
    depth: int = 1,
    clock: ServerClock | None = None,
    idle_steps: IdleSteps | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> EngineLoop[object]:
    """Makes the loop of a decode worker, which has 60 s to drain."""
    config = structs.replace(bench.life.config, drain_seconds=60.0)
    status, clock, scheduler = status or EngineStatus(), clock or bench.life.clock, scheduler or bench.scheduler
    life = replace(bench.life, config=config, inbox=inbox, status=status, clock=clock)
    policy = DecodePolicy(bench.parts._replace(life=life, scheduler=scheduler).of_policy())
    return EngineLoop(life, runner, scheduler, policy, lambda tokens: 1, depth, idle_steps, monotonic)


@pytest.mark.parametrize("depth", [1, 2])
def test_queued_work_never_waits_for_an_event(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs one sequence at a time: each can start only when a collected step has ended the one before."""
    monkeypatch.setattr("worker.engine_loop.MAX_IDLE_WAIT_S", 10 * DEADLINE_S)
    bench = Bench()
    scheduler = Scheduler(
        bench.blocks, SchedulerLimits(max_batch_tokens=16, max_sequences=1, max_model_len=256, max_in_flight=depth)
    )
    inbox: Inbox[object] = Inbox(100)
    runner, status = Sevens(), EngineStatus()
    loop = make_loop(bench, runner, inbox, scheduler=scheduler, status=status, depth=depth)
    for number in range(3):
        inbox.post(job(number))
    inbox.stop()  # ends when everything is done
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the loop sleeps though there is work"
    tokens = [emitted for event in bench.heard(Emit) for emitted in event.emitted]
    assert sum(len(emitted.token_ids) for emitted in tokens) == 15
    assert [emitted.key.request for emitted in tokens if emitted.finish] == ["r0", "r1", "r2"]
    assert runner.most == depth and not bench.heard(Fail)
    assert bench.blocks.used_count == 0 and status.draining


@pytest.mark.parametrize("depth", [1, 2])
def test_past_the_drains_deadline_nothing_is_planned_and_what_flies_is_collected(depth: int) -> None:
    bench = Bench(blocks=65, max_in_flight=depth)
    inbox: Inbox[object] = Inbox(100)
    runner = Sevens()
    loop = make_loop(bench, runner, inbox, depth=depth, clock=StepClock(runner))
    inbox.post(job(1, tokens=200))
    inbox.stop()
    loop.run()
    (failed,) = bench.heard(Fail)
    assert (failed.failure.reason, failed.failure.retryable, loop.error) == ("draining", True, "")
    assert runner.steps == 61 and not runner.launched, "60 s, and the step in which they ended"
    tokens = [token for event in bench.heard(Emit) for emitted in event.emitted for token in emitted.token_ids]
    assert len(tokens) == 61, "what was computed is delivered"
    assert bench.blocks.used_count == 0


class OneGrammar:
    """Is prepared by a thread that the test plays."""

    def __init__(self) -> None:
        self.asked, self.done = threading.Event(), False

    def ready(self, sequence: int, grammar: str, tokens: Sequence[int], prompt_tokens: int) -> bool:
        self.asked.set()
        return self.done

    def forget(self, sequence: int) -> None:
        self.asked.clear()


def test_a_grammar_that_gets_ready_wakes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else does: the loop would sleep for longer than the test takes."""
    monkeypatch.setattr("worker.engine_loop.MAX_IDLE_WAIT_S", 10 * DEADLINE_S)
    bench = Bench()
    grammar = OneGrammar()
    scheduler = Scheduler(
        bench.blocks, SchedulerLimits(max_batch_tokens=16, max_sequences=1, max_model_len=256), readiness=grammar
    )
    inbox: Inbox[object] = Inbox(100)
    runner = Sevens()
    loop = make_loop(bench, runner, inbox, scheduler=scheduler)
    inbox.post(structs.replace(job(1), sampling=structs.replace(SAMPLING, grammar="start: /a/")))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    assert grammar.asked.wait(DEADLINE_S)
    inbox.stop()  # it drains: what waits for its grammar is waited for
    grammar.done = True
    inbox.wake()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the loop sleeps though the grammar is ready"
    tokens = [token for event in bench.heard(Emit) for emitted in event.emitted for token in emitted.token_ids]
    assert len(tokens) == 5 and not grammar.asked.is_set(), "who has ended is forgotten"


class Flooded(Sevens):
    """Has the other thread flood the inbox during the third step, and die of it."""

    def __init__(self, inbox: Inbox[object]) -> None:
        super().__init__()
        self._inbox = inbox

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        if self.steps == 3:
            with pytest.raises(MailboxFull):
                while True:
                    self._inbox.post(job(1))
            self._inbox.stop("the I/O thread died")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("drains", [False, True])
def test_an_error_is_heard_though_the_inbox_is_full(depth: int, drains: bool) -> None:
    bench = Bench(blocks=65, max_in_flight=depth)
    inbox: Inbox[object] = Inbox(10)
    runner = Flooded(inbox)
    loop = make_loop(bench, runner, inbox, depth=depth)
    inbox.post(job(1, tokens=200))
    if drains:
        inbox.stop()
    loop.run()
    assert (loop.error, runner.steps) == ("the I/O thread died", 3)
    assert [event.failure.reason for event in bench.heard(Fail)] == ["engine"]


def test_an_error_ends_the_loop_at_once_and_reports_what_was_running() -> None:
    bench = Bench()
    inbox: Inbox[object] = Inbox(100)
    loop = make_loop(bench, Sevens(), inbox)
    inbox.post(job(1))
    inbox.stop("the I/O thread died")
    loop.run()
    assert loop.error == "the I/O thread died"
    assert [event.failure.reason for event in bench.heard(Fail)] == ["engine"]


class Broken(Sevens):
    """Fails in the first step, as a broken device does."""

    def collect(self) -> StepResult:
        raise DeviceError("CUDA error: an illegal memory access was encountered")


def test_a_device_that_fails_ends_the_loop_with_its_cause_and_others_can_go_on() -> None:
    bench = Bench()
    inbox: Inbox[object] = Inbox(100)
    loop = make_loop(bench, Broken(), inbox)
    inbox.post(job(1))
    loop.run()
    assert loop.error == "CUDA error: an illegal memory access was encountered"
    assert [(event.failure.reason, event.failure.retryable) for event in bench.heard(Fail)] == [("engine", True)]


class Interrupted(Sevens):
    """Has something happen when a step begins, by the step's number."""

    def __init__(self, happens: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._happens = happens

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._happens.get(self.steps, lambda: None)()


@pytest.mark.parametrize("depth", [1, 2])
def test_an_idle_worker_corrects_costs_that_are_far_too_high(depth: int) -> None:
    """A start beside other work has measured them 25 times too high: with an objective, no request would ever come."""
    bench = Bench()
    fit = StepFit(StepCosts(step=0.05, prompt_token=0.002, sequence=0.002))
    inbox: Inbox[object] = Inbox(100)
    session = 2 + DECODE_STEPS
    runner = Interrupted({session: inbox.stop})
    clock = StepClock(runner, 0.002)
    status, idle_steps = EngineStatus(), IdleSteps(bench.blocks, fit, 32, decodes=True)
    scheduler = Scheduler(
        bench.blocks,
        SchedulerLimits(max_batch_tokens=16, max_sequences=1, max_model_len=64, max_in_flight=depth),
        fit=fit,
    )
    make_loop(
        bench,
        runner,
        inbox,
        scheduler=scheduler,
        status=status,
        depth=depth,
        clock=clock,
        idle_steps=idle_steps,
        monotonic=clock.now,
    ).run()
    assert runner.steps == session and runner.most == depth
    assert status.load.costs.decode_seconds(1, 20) < 0.005 and 0 < status.load.costs.fastest < 0.005
    assert status.load.steps == bench.blocks.used_count == 0 and not bench.heard(Emit)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_waits_for_no_more_than_the_steps_in_flight(depth: int) -> None:
    bench = Bench()
    inbox: Inbox[object] = Inbox(100)

    def come() -> None:
        inbox.post(job(1))
        inbox.stop()

    runner = Interrupted({3: come})
    idle_steps = IdleSteps(bench.blocks, StepFit(), 32, decodes=True)
    clock = StepClock(runner, 0.002)
    make_loop(bench, runner, inbox, depth=depth, clock=clock, idle_steps=idle_steps, monotonic=clock.now).run()
    assert runner.steps == 3 + 5, "the session, then the request's steps"
    tokens = [token for event in bench.heard(Emit) for emitted in event.emitted for token in emitted.token_ids]
    assert tokens == [7] * 5 and bench.blocks.used_count == 0 and not runner.launched


class HourBehind:
    """Answers as a Redis server whose clock is an hour behind this host's."""

    async def time(self) -> tuple[int, int]:
        return int(time.time()) - 3600, 0


class AnsweredAtRest(Inbox[object]):
    """Has Redis answer for the first time when the loop first waits for something."""

    def __init__(self, clock: ServerClock) -> None:
        super().__init__(100)
        self._clock = clock

    def take(self, wait: float) -> list[object]:
        store: Any = HourBehind()
        if wait > 0:
            asyncio.run(self._clock.sync(store))
        return super().take(wait)


def test_the_first_answer_of_redis_puts_off_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker measures before it has registered, and its count of the server's time may be set by hours then."""
    monkeypatch.setattr("engine.schedule.idle_steps.MEASURE_AFTER_S", 0.01)
    monkeypatch.setattr("engine.schedule.idle_steps.MAX_SHARE", 1.0)
    bench, clock = Bench(), ServerClock()
    inbox = AnsweredAtRest(clock)
    runner = Interrupted({3 + DECODE_STEPS: inbox.stop})
    idle_steps = IdleSteps(bench.blocks, StepFit(), 32, decodes=True)
    loop = make_loop(bench, runner, inbox, clock=clock, idle_steps=idle_steps)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "no second session has begun"


class StopsAtRest(Inbox[object]):
    """Has the loop stop as soon as it would wait for something."""

    def take(self, wait: float) -> list[object]:
        if wait > 0:
            self.stop()
        return super().take(wait)


def test_a_worker_that_has_just_run_a_request_measures_nothing() -> None:
    bench, inbox, runner = Bench(), StopsAtRest(100), Sevens()
    inbox.post(job(1))
    idle_steps, clock = IdleSteps(bench.blocks, StepFit(), 32, decodes=True), StepClock(runner, 0.002)
    make_loop(bench, runner, inbox, clock=clock, idle_steps=idle_steps, monotonic=clock.now).run()
    assert runner.steps == 5
