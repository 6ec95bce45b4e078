"""Kills workers in the midst of answers. The gateway's figures of this moment say who has some.

Which worker a request goes to is the router's matter, and on a fast machine answers end soon: a worker that was chosen
beforehand may have none when it is killed, and then its death shows nothing.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from infra.redis.records import Role
from tests.e2e.harness.system import System
from tests.waiting import wait_until

MIN_ANSWERS = 3  # answers that a worker has when it is killed: one could end at this very moment


def first_tokens(system: System) -> float:
    return sum(one.value for one in system.figures("vllm:time_to_first_token_seconds_count"))


def sequences(system: System, role: Role) -> dict[str, float]:
    figures = system.figures("baton:worker_sequences")
    return {one.labels["engine"]: one.value for one in figures if one.labels["role"] == role}


def kill_busiest(system: System, role: Role = "decode", least: int = MIN_ANSWERS) -> None:
    """Kills the worker of a role that has most answers in progress; waits until it has `least`.

    It is stopped before it is counted for good: else its answers might end between the count and the kill. The gateway
    is asked twice, so that all that the worker had sent has been read.
    """

    def killed() -> bool:
        before = sequences(system, role)
        victim = max(before, key=lambda epoch: before[epoch], default="")
        if before.get(victim, 0) < least:
            return False
        name = system.name_of(victim)
        worker = system.workers[name]
        worker.send_signal(signal.SIGSTOP)
        left = [sequences(system, role).get(victim, 0) for _ in range(2)]
        if min(left) < least:
            worker.send_signal(signal.SIGCONT)
            return False
        system.kill(name)
        return True

    wait_until(killed, f"a {role} worker with {least} answers in progress")


@contextmanager
def death_midway(system: System, role: Role = "decode", least: int = MIN_ANSWERS) -> Iterator[None]:
    """Kills the busiest worker of a role while this context asks: a decode worker not before tokens begin to come."""
    before = first_tokens(system)

    def kill() -> None:
        if role == "decode":
            wait_until(lambda: first_tokens(system) > before, "a first token")
        kill_busiest(system, role, least)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        yield
        killed.result()
