"""An engine thread that hangs is seen wherever it hangs, and ends its process; one that is slow or idle does not."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from engine.plan import BlockMove, StepPlan, StepResult
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from tests.waiting import wait_until
from tests.worker.role_bench import Bench, Sevens
from tests.worker.test_engine_loop import job, make_loop
from worker.engine_status import MIN_OVERDUE_S, EngineStatus
from worker.engine_watch import HUNG_EXIT_STATUS, EngineWatch
from worker.mailbox import Inbox

HANG_BOUND_S = 60.0


class Told(list[str]):
    """Looks once a second, and keeps what a watch says instead of ending the process."""

    def __init__(self, status: EngineStatus, bound: float = HANG_BOUND_S) -> None:
        super().__init__()
        self._watch = EngineWatch(status, bound, self.append)
        self._now = 0.0

    def after(self, seconds: int) -> bool:
        """Lets a watcher's time pass; tells whether the process would have ended."""
        for _ in range(seconds):
            self._now += 1.0
            self._watch.look(self._now)
        return bool(self)


class Hanging(Sevens):
    """Hangs in one of its calls from the third step on, until it is let go."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self.hangs = threading.Event()
        self.go = threading.Event()

    def launch(self, plan: StepPlan) -> None:
        self._pass("launch")
        super().launch(plan)

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._pass("move")

    def collect(self) -> StepResult:
        self._pass("collect")
        return super().collect()

    def _pass(self, where: str) -> None:
        if where == self._where and self.steps >= 2:
            self.hangs.set()
            assert self.go.wait(60)


class Moving(Scheduler):
    """Has a move to be made before each step."""

    def take_moves(self) -> list[BlockMove]:
        return [*super().take_moves(), BlockMove("copy", 0, 1, 2)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("where", "doing"),
    [("move", "moving blocks"), ("launch", "launching a step"), ("collect", "collecting a step")],
)
def test_a_hang_is_seen_wherever_it_is(depth: int, where: str, doing: str) -> None:
    bench = Bench(blocks=65)
    limits = SchedulerLimits(max_batch_tokens=16, max_sequences=8, max_model_len=256, max_in_flight=depth)
    scheduler = Moving(bench.blocks, limits)
    inbox: Inbox[object] = Inbox(10)
    runner, status = Hanging(where), EngineStatus()
    loop = make_loop(bench, runner, inbox, scheduler=scheduler, status=status, depth=depth)
    inbox.post(job(1, tokens=200))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        assert runner.hangs.wait(60)
        told = Told(status)
        assert not told.after(int(HANG_BOUND_S)) and told.after(2)
        assert doing in told[0] and "--hang-seconds 60" in told[0]
        assert not Told(status, bound=0.0).after(1000), "0: never"
    finally:
        runner.go.set()
        inbox.stop("the test is over")
        thread.join(60)
    assert not thread.is_alive()


def test_an_engine_that_waits_for_events_does_not_hang() -> None:
    bench = Bench()
    inbox: Inbox[object] = Inbox(10)
    status = EngineStatus()
    loop = make_loop(bench, Sevens(), inbox, status=status)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    wait_until(lambda: status.activity is None, "the wait")
    told = Told(status)
    told.after(1000)
    inbox.stop()
    thread.join(60)
    assert not told and status.activity is None


def test_rounds_that_end_do_not_hang() -> None:
    status = EngineStatus()
    told = Told(status)
    for _ in range(100):
        status.begins("planning")
        assert not told.after(50)
        status.rests()


def test_a_round_may_take_ten_of_the_largest_steps() -> None:
    status = EngineStatus(longest=20.0)
    status.begins("collecting a step")
    told = Told(status)
    assert not told.after(200) and told.after(2)


def test_a_round_is_due_after_a_multiple_of_the_largest_step() -> None:
    status = EngineStatus()
    assert status.round_due_ms() == 0.0, "at rest"
    status.begins("planning")
    assert 0.0 < status.round_due_ms() <= MIN_OVERDUE_S * 1000
    slow = EngineStatus(longest=20.0)
    slow.begins("planning")
    assert 190_000 < slow.round_due_ms() <= 200_000


CHILD = """
import sys, threading
import torch
from dataclasses import replace
from msgspec import structs
from tests.worker.role_bench import Bench
from tests.worker.test_io_thread import RECORD
from worker.io_thread import IOThread

life = Bench().life
life = replace(life, config=structs.replace(life.config, hang_seconds=0.01))

def broken(*_):
    raise OSError("no transfer")

life.status.begins("moving blocks")
IOThread(life, RECORD, b"a secret of some length that is long enough", broken, torch.device("cpu")).start()
threading.Event().wait(60)
"""


def test_a_process_whose_engine_hangs_ends_though_its_io_thread_has_died() -> None:
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    assert child.returncode == HUNG_EXIT_STATUS, child.stderr
    (error,) = [line for line in child.stderr.splitlines() if line.startswith("error: ")]
    assert "it has been moving blocks for" in error
    assert 'File "<string>"' in child.stderr, "where each thread is"
