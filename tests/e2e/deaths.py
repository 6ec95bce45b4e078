"""Kills workers in the midst of answers. The gateway's figures of this moment say who has some.

Which worker a request goes to is the router's matter, and on a fast machine answers end soon: a worker that was chosen
beforehand may have none when it is killed, and then its death shows nothing.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from core.redis.records import Role
from tests.e2e.system import System
from tests.waiting import wait_until

LEAST = 3  # answers that a worker has when it is killed: one could end at this very moment


def first_tokens(system: System) -> float:
    """Returns to how many answers a first token has come."""
    return sum(one.value for one in system.figures("vllm:time_to_first_token_seconds_count"))


def kill_busiest(system: System, role: Role = "decode", least: int = LEAST) -> None:
    """Kills the worker of a role that has most answers in progress; waits until it has `least`."""
    victim = ""

    def found() -> bool:
        nonlocal victim
        figures = [one for one in system.figures("baton:worker_sequences") if one.labels["role"] == role]
        counts = {one.labels["engine"]: one.value for one in figures}
        victim = max(counts, key=lambda epoch: counts[epoch], default="")
        return counts.get(victim, 0) >= least

    wait_until(found, f"a {role} worker with {least} answers in progress")
    system.kill(system.name_of(victim))


@contextmanager
def death_midway(system: System, role: Role = "decode", least: int = LEAST) -> Iterator[None]:
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
