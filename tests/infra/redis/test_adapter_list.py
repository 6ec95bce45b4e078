"""The list of adapters in Redis: changes come one after the other, and nobody without the secret makes one."""

import asyncio

import pytest

from contracts.adapters import AdapterSource
from infra.network.sealing import Signer
from infra.redis.adapter_list import AdapterList, change, list_key, read
from infra.redis.clients import Store

SIGNER, OTHER = Signer(b"the deployment's secret", "lists"), Signer(b"another deployment's secret", "lists")
Sources = tuple[AdapterSource, ...]


def source(name: str) -> AdapterSource:
    return AdapterSource(name, f"dir/{name}")


async def add(store: Store, name: str, now: float = 1.0) -> AdapterList:
    return await change(store, SIGNER, "/models/m", now, lambda old: (*old, source(name)))


async def test_changes_of_many_at_once_are_all_there(store: Store) -> None:
    assert await read(store, SIGNER, "m") == AdapterList()
    names = [f"a{number}" for number in range(8)]
    await asyncio.gather(*(add(store, name) for name in names))
    found = await read(store, SIGNER, "hub/m")  # the end of a model's name counts
    assert {one.name for one in found.adapters} == set(names)
    assert found.number == 1_000_007
    assert (await read(store, SIGNER, "other")).number == 0
    assert await store.pttl(list_key("m")) > 3600 * 1000


async def test_a_change_that_is_refused_leaves_the_list(store: Store) -> None:
    before = await add(store, "a")

    def refuse(old: Sources) -> Sources:
        assert old == before.adapters
        raise ValueError("taken")

    with pytest.raises(ValueError, match="taken"):
        await change(store, SIGNER, "m", 1.0, refuse)
    assert await read(store, SIGNER, "m") == before


async def test_numbers_grow_even_if_redis_lost_the_list(store: Store) -> None:
    first = await add(store, "a", now=100.0)
    await store.delete(list_key("m"))
    assert (await add(store, "b", now=100.5)).number > first.number


async def test_a_list_that_was_altered_moved_or_signed_by_others_is_none(store: Store) -> None:
    await add(store, "a")
    body = await store.get(list_key("m"))
    assert isinstance(body, bytes)
    await store.set(list_key("other"), body)
    assert await read(store, SIGNER, "other") == AdapterList()
    assert await read(store, OTHER, "m") == AdapterList()
    for altered in (body.replace(b"dir/a", b"dir/b"), b"{}", b"\xff"):
        assert altered != body
        await store.set(list_key("m"), altered)
        assert await read(store, SIGNER, "m") == AdapterList()
