"""Carries out what the policy decides from what gateways publish in Redis: one change at a time, none on old news."""

from collections.abc import AsyncIterator, Mapping

import pytest
from msgspec import structs

from contracts.errors import BatonError
from contracts.slo import SLO
from infra.network.sealing import Signer
from infra.redis.clients import Store, connect
from infra.redis.records import GatewayRecord
from infra.redis.registry import RECORD_PURPOSE, publish
from launcher.autoscale.policy import MAX_FIGURE_AGE_S
from launcher.autoscale.rules import Bounds, Rules
from launcher.deployment import Role
from launcher.on_ray.control.scaling import FAILED_CHANGE_PAUSE_S, Scaling
from pricing.scaling.standing import Standing
from tests.infra.conftest import clean_redis, redis_url
from tests.launcher.autoscale.loads import Offered, seen

__all__ = ["clean_redis", "redis_url"]

RULES = Rules({"decode": Bounds(1, 3)}, SLO(1000.0, 50.0), up=10.0, down=20.0)
SECRET_FILE = b"the deployment's"
QUIET, BUSY = Offered(), Offered(tokens=6000.0)


class Deployment:
    """Workers that are there as soon as they are wanted, and a gateway that says how they stand; a clock of its own."""

    def __init__(self, store: Store) -> None:
        self.now = 100.0
        self.store = store
        self.workers = {"prefill": 1, "decode": 1}
        self.changes: list[str] = []
        self.said: list[str] = []
        self.full = False
        self.scaling = Scaling(RULES, SECRET_FILE, self, lambda: self.now)

    def counts(self) -> Mapping[str, int]:
        return self.workers

    def add(self, role: Role) -> str:
        if self.full:
            raise BatonError("Ray finds no nodes")
        self.workers[role] += 1
        self.changes.append(f"+{role}")
        return f"{role}-{self.workers[role] - 1}"

    def remove_at(self, role: Role, address: str) -> str:
        self.workers[role] -= 1
        self.changes.append(f"-{address}")
        return f"{role}-0"

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    async def tells(self, load: Offered, secret: bytes = SECRET_FILE, serving: int | None = None) -> None:
        """The gateway's heartbeat; so many decode workers serve."""
        standing = seen(load, 1, serving or self.workers["decode"])
        decode = [structs.replace(one, address=f"tcp://{one.worker}") for one in standing.decode.workers]
        standing = Standing(standing.prefill, structs.replace(standing.decode, workers=tuple(decode)))
        record = GatewayRecord("g", "http://g", "m", 0.0, standing=standing)
        await publish(self.store, Signer(secret, RECORD_PURPOSE), record, self.now)

    async def looks(self, load: Offered | None, seconds: int, serving: int | None = None) -> list[str]:
        """Looks each second, behind a heartbeat if there is a load; returns the changes."""
        before = len(self.changes)
        for _ in range(seconds):
            self.now += 1.0
            if load is not None:
                await self.tells(load, serving=serving)
            await self.scaling.look(self.store)
        return self.changes[before:]


@pytest.fixture
async def deployment(clean_redis: str) -> AsyncIterator[Deployment]:
    store = connect(clean_redis)
    yield Deployment(store)
    await store.aclose()


async def test_workers_follow_the_load_and_the_one_that_goes_is_named_by_its_address(deployment: Deployment) -> None:
    assert await deployment.looks(BUSY, 40) == ["+decode", "+decode"]
    assert deployment.said[0].startswith("decode-1 is added by --autoscale: pressure is ")
    assert await deployment.looks(BUSY, 40) == [], "there may be three"
    assert await deployment.looks(QUIET, 15) == []
    gone = await deployment.looks(QUIET, 80)
    assert len(gone) == 2 and all(one.startswith("-tcp://d") for one in gone)
    assert await deployment.looks(QUIET, 60) == [], "one stays"


async def test_nothing_happens_while_a_worker_starts(deployment: Deployment) -> None:
    deployment.workers["decode"] = 2
    assert await deployment.looks(BUSY, 60, serving=1) == []
    assert await deployment.looks(BUSY, 15) == ["+decode"]


async def test_old_news_and_those_of_nobody_are_no_reason(deployment: Deployment) -> None:
    assert await deployment.looks(None, 30) == []
    for _ in range(30):
        deployment.now += 1.0
        await deployment.tells(BUSY, secret=b"another deployment's")
        await deployment.scaling.look(deployment.store)
    assert deployment.changes == []
    await deployment.looks(BUSY, 2)
    assert await deployment.looks(None, int(MAX_FIGURE_AGE_S) + 20) == []


async def test_where_redis_is_away_nothing_changes(deployment: Deployment) -> None:
    away = connect("redis://127.0.0.1:1")
    deployment.store, there = away, deployment.store
    assert await deployment.looks(None, 2) == []
    await away.aclose()
    deployment.store = there
    assert await deployment.looks(BUSY, 15) == ["+decode"]


async def test_what_could_not_be_done_is_said_and_tried_again_after_a_pause(deployment: Deployment) -> None:
    deployment.full = True
    await deployment.looks(BUSY, 40)
    (said,) = deployment.said
    assert said == f"--autoscale waits for {FAILED_CHANGE_PAUSE_S:.0f} s: Ray finds no nodes"
    deployment.full = False
    assert await deployment.looks(BUSY, int(FAILED_CHANGE_PAUSE_S) - 40) == []
    assert await deployment.looks(BUSY, 60) == ["+decode", "+decode"]
