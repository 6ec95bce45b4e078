"""A process that wants a processor and gets none is told from a process that waits for an event."""

import subprocess
import time
from contextlib import ExitStack

import pytest

from infra.process.run_queue import RunQueue
from tests.busy import busy_on_one_core
from tests.waiting import wait_until


@pytest.mark.parametrize("thread", ["main", "thread"])
def test_a_process_that_others_keep_from_the_processor_waits_in_the_run_queue(thread: str) -> None:
    """Nice 19 has a weight of 15 beside 1,024 of nice 0 (sched(7)): behind two such it waits most of the time."""
    with ExitStack() as stack:
        starved = stack.enter_context(busy_on_one_core(19, thread))
        for _ in range(2):
            stack.enter_context(busy_on_one_core(0))
        queue = RunQueue(starved.pid)
        began = time.monotonic()
        waits = [queue.look(began)]
        assert waits == [0.0], "the first look has nothing to compare with"

        def has_waited() -> bool:
            waits.append(queue.look(time.monotonic()))
            return sum(waits) > 0.5

        wait_until(has_waited, "a wait in the run queue")


def test_a_process_that_waits_for_an_event_is_not_in_the_run_queue() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            queue = RunQueue(child.pid)
            began = time.monotonic()
            queue.look(began)
            wait_until(lambda: time.monotonic() > began + 0.2, "a fifth of a second")
            assert queue.look(time.monotonic()) < 0.1
        finally:
            child.kill()
    assert RunQueue(child.pid).look(0.0) == 0.0, "the process has ended"
