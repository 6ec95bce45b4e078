"""Adds and removes workers of a deployment on Ray as the policy decides by the gateways' records, one at a time."""

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
from launcher.autoscale.policy import ScalingChange, ScalingInput, ScalingPolicy
from launcher.autoscale.rules import Rules
from launcher.deployment import Role
from pricing.scaling.standing import Standing, WorkerStanding, merged

SCALING_PERIOD_S = 1.0
POLL_PERIOD_S = 5.0  # for an answer of Redis
FAILED_CHANGE_PAUSE_S = 300.0  # after a failed change, such as on a full cluster
ROLES: Mapping[str, Role] = {"prefill": "prefill", "decode": "decode"}
log = logging.getLogger("baton.scaling")


class Workers(Protocol):
    """Changes the deployment. A call returns when the worker is placed, or has drained and ended."""

    def counts(self) -> Mapping[str, int]:
        """Returns the wanted number of workers by role, starting workers included; empty: nothing runs yet."""

    def add(self, role: Role) -> str:
        """Adds a worker, and returns its name. Raises `BatonError`."""

    def remove_at(self, role: Role, address: str) -> str:
        """Drains and removes the worker at this address, and returns its name. Raises `BatonError`."""

    def say(self, sentence: str) -> None:
        """Shows a sentence to the operator."""


class Scaling:
    """Scales one deployment; `run` is the function of its thread."""

    def __init__(
        self, rules: Rules, secret: bytes, workers: Workers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._policy = ScalingPolicy(rules, clock())
        self._signer = Signer(secret, RECORD_PURPOSE)
        self._workers = workers
        self._paused_until = 0.0
        self._beats: dict[str, tuple[int, float]] = {}  # gateway's epoch → last heartbeat, time of its first read

    def run(self, redis: str) -> None:
        asyncio.run(self._run(redis))

    async def _run(self, redis: str) -> None:
        store = connect(redis)
        while True:
            await self.look(store)
            await asyncio.sleep(SCALING_PERIOD_S)

    async def look(self, store: Store) -> None:
        """Makes at most one change, which takes as long as a worker takes to be placed or to drain."""
        standing, age = await self._standing(store)
        seen, now = ScalingInput(standing, age, self._workers.counts()), self._clock()
        if seen.wanted and now >= self._paused_until and (change := self._policy.look(seen, now)) is not None:
            await asyncio.to_thread(self._carry_out, change, seen)

    async def _standing(self, store: Store) -> tuple[Standing | None, float]:
        """Returns the gateways' combined standing, and the age in seconds of the oldest record.

        None if no gateway has a record, or Redis does not answer.
        """
        try:
            async with asyncio.timeout(POLL_PERIOD_S):
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

    def _carry_out(self, change: ScalingChange, observed: ScalingInput) -> None:
        role = ROLES[change.role]
        try:
            if change.by > 0:
                self._workers.say(f"{self._workers.add(role)} is added by --autoscale: {change.why}")
            else:
                name = self._workers.remove_at(role, _address(observed.standing, change.worker))
                self._workers.say(f"{name} was removed by --autoscale: {change.why}")
        except (BatonError, RayError) as error:
            self._workers.say(f"--autoscale waits for {FAILED_CHANGE_PAUSE_S:.0f} s: {error}")
            self._paused_until = self._clock() + FAILED_CHANGE_PAUSE_S


def _address(standing: Standing | None, worker: str) -> str:
    """Returns the address of a worker by its epoch."""
    assert standing is not None, "a worker was seen"
    workers: tuple[WorkerStanding, ...] = standing.prefill.workers + standing.decode.workers
    return next(one.address for one in workers if one.worker == worker)
