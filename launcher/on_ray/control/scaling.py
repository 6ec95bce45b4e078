"""Grows and shrinks a deployment on Ray as the policy decides, by what its gateways publish: one change at a time."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from ray.exceptions import RayError

from contracts.errors import BatonError, StoreUnavailable
from infra.network.sealing import Signer
from infra.redis.clients import Store, connect
from infra.redis.records import GatewayRecord
from infra.redis.registry import RECORD_PURPOSE, listed
from launcher.autoscale.policy import Change, Policy, Seen
from launcher.autoscale.rules import Rules
from launcher.deployment import Role
from pricing.standing import Standing, WorkerStanding, merged

LOOK_SECONDS = 1.0
ASK_SECONDS = 5.0  # for Redis to answer
PAUSE_SECONDS = 300.0  # after a change that could not be made, such as where the cluster has no room
ROLES: Mapping[str, Role] = {"prefill": "prefill", "decode": "decode"}
log = logging.getLogger("baton.scaling")


class Workers(Protocol):
    """Changes the deployment. Calls return when the change is made: a worker is placed, or has drained and is gone."""

    def counts(self) -> Mapping[str, int]:
        """Counts the workers that there should be, by role, those that start among them; empty: nothing runs yet."""

    def add(self, role: Role) -> str:
        """Adds a worker, and returns its name. Raises `BatonError`."""

    def remove_at(self, role: Role, address: str) -> str:
        """Has the worker at this address drain and end, and returns its name. Raises `BatonError`."""

    def say(self, sentence: str) -> None:
        """Tells whoever watches."""


class Scaling:
    """Follows one deployment; `run` is what its thread does."""

    def __init__(
        self, rules: Rules, secret: bytes, workers: Workers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keeps `workers` to `rules`, by records that are signed with a key from the deployment's `secret`."""
        self._clock = clock
        self._policy = Policy(rules, clock())
        self._signer = Signer(secret, RECORD_PURPOSE)
        self._workers = workers
        self._paused_until = 0.0
        self._beats: dict[str, tuple[int, float]] = {}  # by gateway the last heartbeat, and when it was seen first

    def run(self, redis: str) -> None:
        """Looks and changes until the process ends, by what is at this URL."""
        asyncio.run(self._run(redis))

    async def _run(self, redis: str) -> None:
        store = connect(redis)
        while True:
            await self.look(store)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, store: Store) -> None:
        """Looks once, and carries out what is due; that takes as long as a worker takes to be placed, or to drain."""
        standing, age = await self._standing(store)
        seen, now = Seen(standing, age, self._workers.counts()), self._clock()
        if seen.wanted and now >= self._paused_until and (change := self._policy.look(seen, now)) is not None:
            await asyncio.to_thread(self._carry_out, change, seen)

    async def _standing(self, store: Store) -> tuple[Standing | None, float]:
        """Returns what the gateways last said, and for how many s one of them has said nothing new.

        None where nobody has said anything, or Redis is away.
        """
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = await listed(store, self._signer, GatewayRecord)
        except (StoreUnavailable, TimeoutError) as error:
            log.debug("nothing is known: %s", error)
            return None, 0.0
        now = self._clock()
        news = {record.epoch: (beat, now) for record, beat in found}
        self._beats = {
            epoch: self._beats[epoch] if self._beats.get(epoch, (0, 0.0))[0] == beat else (beat, at)
            for epoch, (beat, at) in news.items()
        }
        age = max([now - at for _, at in self._beats.values()], default=0.0)
        return (merged([record.standing for record, _ in found]) if found else None), age

    def _carry_out(self, change: Change, seen: Seen) -> None:
        role = ROLES[change.role]
        try:
            if change.by > 0:
                self._workers.say(f"{self._workers.add(role)} is added by --autoscale: {change.why}")
            else:
                name = self._workers.remove_at(role, _address(seen.standing, change.worker))
                self._workers.say(f"{name} was removed by --autoscale: {change.why}")
        except (BatonError, RayError) as error:
            self._workers.say(f"--autoscale waits for {PAUSE_SECONDS:.0f} s: {error}")
            self._paused_until = self._clock() + PAUSE_SECONDS


def _address(standing: Standing | None, worker: str) -> str:
    """Returns the address of a worker by its epoch."""
    assert standing is not None, "a worker was seen"
    workers: tuple[WorkerStanding, ...] = standing.prefill.workers + standing.decode.workers
    return next(one.address for one in workers if one.worker == worker)
