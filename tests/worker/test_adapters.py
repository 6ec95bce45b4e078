"""A worker follows the list of adapters: it loads, says what it could not load, and frees what nobody uses."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.adapters import AdapterSource, HeldAdapter
from contracts.errors import AdapterError, ConfigError
from infra.network.sealing import Signer
from infra.redis.adapter_list import AdapterList, change
from infra.redis.clients import Store, connect
from infra.redis.records import GatewayRecord
from infra.redis.registry import SignedRecord, listed, publish
from worker import adapters as module
from worker.adapters import Adapters, AdapterSigners

SIGNERS = AdapterSigners.of(b"the deployment's secret")
DIGESTS = {"sql": "a" * 32, "law": "b" * 32, "other-sql": "c" * 32}


class Shelf:
    """Holds digests in place of weights."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def load(self, directory: Path) -> str:
        if directory.name not in DIGESTS:
            raise AdapterError(f"there is no directory {directory.name!r}")
        self.held.add(DIGESTS[directory.name])
        return DIGESTS[directory.name]

    def free(self, digest: str) -> None:
        self.held.remove(digest)


class World:
    """A worker's adapters, and Redis, where others ask for some."""

    def __init__(self, store: Store, root: Path) -> None:
        self.store, self.shelf = store, Shelf()
        self.adapters = Adapters(self.shelf, "m", str(root))

    async def want(self, **paths: str) -> AdapterList:
        """Has clients ask for these, by name, and the worker follow."""
        wanted = tuple(AdapterSource(name, path) for name, path in paths.items())
        found = await change(self.store, SIGNERS.lists, "m", 1.0, lambda old: wanted)
        await self.adapters.follow(self.store, SIGNERS)
        return found

    async def in_use(self, *digests: str) -> None:
        """Has a gateway say that its requests use these, and the worker hear it, long enough after they left."""
        record = GatewayRecord("g", "url", "m", 0.0, adapters=list(digests))
        await publish(self.store, SIGNERS.records, record, now=1.0)
        await self.adapters.follow(self.store, SIGNERS)


@pytest_asyncio.fixture
async def world(clean_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "LEAVE_S", -1.0)
    store = connect(clean_redis)
    yield World(store, tmp_path)
    await store.aclose()


async def test_what_the_list_asks_for_is_loaded_and_said(world: World) -> None:
    assert world.adapters.number == 0 and world.adapters.record() == ()
    found = await world.want(sql="sql", mine="law")
    assert world.adapters.number == found.number
    assert world.adapters.record() == (
        HeldAdapter("sql", "sql", DIGESTS["sql"]),
        HeldAdapter("mine", "law", DIGESTS["law"]),
    )
    assert (
        world.adapters.has("") and world.adapters.has(DIGESTS["law"]) and not world.adapters.has(DIGESTS["other-sql"])
    )


async def test_one_that_cannot_be_loaded_is_said_with_its_reason(world: World) -> None:
    await world.want(sql="sql", bad="nowhere", out="../sql")
    errors = {held.name: held.error for held in world.adapters.record()}
    assert errors["sql"] == "" and "no directory 'nowhere'" in errors["bad"] and "not below" in errors["out"]
    await world.want(sql="sql")
    assert [held.name for held in world.adapters.record()] == ["sql"]
    assert world.shelf.held == {DIGESTS["sql"]}


async def test_it_is_freed_when_no_gateway_and_no_sequence_uses_it(world: World) -> None:
    digest = DIGESTS["sql"]
    await world.want(sql="sql")
    await world.want()
    (leaving,) = world.adapters.record()
    assert leaving.leaving and world.adapters.has(digest)
    await world.in_use(digest)
    assert not world.adapters.has_unused()
    await world.in_use()
    assert world.adapters.has_unused()
    world.adapters.free({digest, ""})  # a step under way still has it
    assert world.shelf.held == {digest} and world.adapters.has_unused()
    world.adapters.free({""})
    assert world.shelf.held == set() and world.adapters.record() == () and not world.adapters.has(digest)


async def test_an_adapter_freed_while_redis_answers_is_freed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed_while_the_engine_frees(
        store: Store, signer: Signer, kind: type[GatewayRecord]
    ) -> list[SignedRecord[GatewayRecord]]:
        found = await listed(store, signer, kind)
        world.adapters.free(set())
        return found

    await world.want(sql="sql")
    await world.want()
    await world.in_use()
    monkeypatch.setattr(module, "listed", listed_while_the_engine_frees)
    await world.in_use()
    assert world.shelf.held == set() and not world.adapters.has_unused()
    world.adapters.free(set())


async def test_nothing_is_freed_before_every_gateway_has_spoken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 3.0)
    await world.want(sql="sql")
    await world.want()
    await world.in_use()
    assert not world.adapters.has_unused()
    later = time.monotonic() + 3.1
    monkeypatch.setattr("worker.adapters.time.monotonic", lambda: later)
    await world.in_use()
    assert world.adapters.has_unused()


async def test_one_that_comes_back_while_it_leaves_stays(world: World) -> None:
    await world.want(sql="sql")
    await world.want()
    await world.in_use()
    await world.want(sql="sql")
    world.adapters.free(set())
    assert world.shelf.held == {DIGESTS["sql"]}
    assert world.adapters.record() == (HeldAdapter("sql", "sql", DIGESTS["sql"]),)


async def test_other_weights_under_a_name_are_another_adapter_beside_the_one_that_leaves(world: World) -> None:
    await world.want(sql="sql")
    await world.want(sql="other-sql")
    assert world.adapters.record() == (
        HeldAdapter("sql", "other-sql", DIGESTS["other-sql"]),
        HeldAdapter("sql", "sql", DIGESTS["sql"], leaving=True),
    )


async def test_one_that_has_two_names_stays_while_one_of_them_does(world: World) -> None:
    await world.want(sql="sql", mine="sql")
    await world.want(mine="sql")
    await world.in_use()
    world.adapters.free(set())
    assert [held.name for held in world.adapters.record()] == ["mine"] and world.shelf.held == {DIGESTS["sql"]}


async def test_nothing_leaves_because_redis_lost_the_list_or_an_older_one_was_put_back(world: World) -> None:
    await world.want(sql="sql")
    (key,) = [key for key in await world.store.keys("*adapters*")]
    older = await world.store.get(key)
    assert older is not None
    await world.want(sql="sql", law="law")
    for put_back in (older, None):
        await (world.store.set(key, put_back) if put_back else world.store.delete(key))
        await world.adapters.follow(world.store, SIGNERS)
        assert [held.name for held in world.adapters.record()] == ["sql", "law"]


async def test_those_of_the_start_stay_and_a_bad_one_is_refused_by_name(world: World) -> None:
    world.adapters.load_fixed([AdapterSource("sql", "/somewhere/sql")])
    await world.want(sql="law")
    await world.want()
    assert world.adapters.record() == (HeldAdapter("sql", "sql", DIGESTS["sql"], fixed=True),)
    with pytest.raises(ConfigError, match="--lora: 'x=/somewhere/x': there is no directory 'x'"):
        world.adapters.load_fixed([AdapterSource("x", "/somewhere/x")])
