"""Shows that all that is kept in Redis works with one server, behind sentinels, and in a cluster: real ones."""

import asyncio
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from contracts.adapters import AdapterSource
from contracts.errors import ConfigError, StoreUnavailable
from infra.network.sealing import Sealer, Signer
from infra.redis import adapter_list
from infra.redis.clients import connect, connect_blocking, redacted
from infra.redis.queue import JOB_PURPOSE, JobQueue, add_job
from infra.redis.records import GatewayRecord
from infra.redis.registry import RECORD_PURPOSE as RECORDS
from infra.redis.registry import listed, publish, withdraw
from infra.redis.store import ServerClock, check
from infra.redis.stored import TenantStore
from launcher.host.redis_server import server_binary
from tests.infra.redis.test_queue import job
from tests.waiting import DEADLINE_S, wait_until

SECRET = b"the deployment's secret"
PASSWORD = "a pass/word"
QUOTED = "a%20pass%2Fword"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(directory: Path, config: str, *options: str) -> Iterator[None]:
    path = directory / "server.conf"
    path.write_text(config)
    process = subprocess.Popen([str(server_binary()), str(path), *options], stdout=subprocess.DEVNULL, cwd=directory)
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def answers(url: str, ready: Callable[[redis.Redis], object]) -> Callable[[], bool]:
    def look() -> bool:
        try:
            with connect_blocking(url) as client:
                return bool(ready(client))
        except redis.RedisError:
            return False

    return look


@pytest.fixture(scope="module", params=["one with a password", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("redis")
    port, other = free_ports(2)
    usual = f'port {port}\nbind 127.0.0.1\nsave ""\nrequirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\n'
    with ExitStack() as stack:
        if request.param == "cluster":
            stack.enter_context(running(directory, usual + f"cluster-enabled yes\ncluster-port {other}\n"))
            single = f"redis://:{QUOTED}@127.0.0.1:{port}"
            wait_until(answers(single, lambda client: client.ping()), "a node")
            with redis.Redis.from_url(single) as node:
                node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                wait_until(lambda: node.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster")
            found = f"redis+cluster://:{QUOTED}@127.0.0.1:{port}"
        else:
            stack.enter_context(running(directory, usual))
            found = f"redis://:{QUOTED}@127.0.0.1:{port}"
        if request.param == "sentinel":
            (directory / "sentinel").mkdir()
            config = f"port {other}\nsentinel monitor main 127.0.0.1 {port} 1\nsentinel auth-pass main {PASSWORD!r}\n"
            stack.enter_context(running(directory / "sentinel", config, "--sentinel"))
            found = f"redis+sentinel://:{QUOTED}@127.0.0.1:{other},127.0.0.1:1/main"
        wait_until(answers(found, lambda client: client.ping()), request.param)
        yield found


async def test_all_that_is_kept_in_redis_is_kept_there(url: str) -> None:
    store, signer, sealer, clock = connect(url), Signer(SECRET, RECORDS), Sealer(SECRET, JOB_PURPOSE), ServerClock()
    try:
        await check(store, url)
        await clock.sync(store)
        gateways = [GatewayRecord(f"gateway-{number}", "http://", "m", 1.0) for number in range(20)]
        for each in gateways:
            await publish(store, signer, each, clock.server_now())
        assert {found.record.epoch for found in await listed(store, signer, GatewayRecord)} == {
            each.epoch for each in gateways
        }
        await withdraw(store, gateways[0])
        assert len(await listed(store, signer, GatewayRecord)) == 19
        queue = JobQueue(store, sealer, "worker")
        await queue.open()
        await asyncio.gather(*[add_job(store, sealer, job(number)) for number in range(100)])
        taken = [each for _ in range(4) for each in await queue.take(32, 100)]
        assert {each.request for each in taken} == {job(number).request for number in range(100)}
        await queue.close()
        for number in (1, 2):
            source = AdapterSource(f"adapter-{number}", f"/adapters/{number}")
            await adapter_list.change(store, signer, "model", clock.server_now(), partial(_with, source))
        assert len((await adapter_list.read(store, signer, "model")).adapters) == 2
        kept = TenantStore(store, SECRET, 60.0, 1 << 20)
        for number in range(8):
            assert await kept.put(f"tenant {number}", "one", b"a body", clock.server_now())
        assert await kept.get("tenant 3", "one") == b"a body"
        assert await kept.delete("tenant 3", "one") and await kept.get("tenant 3", "one") is None
    finally:
        await store.aclose()


def _with(source: AdapterSource, old: tuple[AdapterSource, ...]) -> tuple[AdapterSource, ...]:
    return (*old, source)


@pytest.mark.parametrize(
    "bad, why",
    [
        ("redis+sentinel://host:26379", "/service"),
        ("redis+sentinel://host:26379/main/first", "/service"),
        ("redis+sentinel://host:70000/main", "host:70000"),
        ("redis+sentinel://host,/main", "''"),
        ("redis+cluster://host:6379/1", "no databases"),
        ("redis+cluster://host:6379?colour=red", "colour"),
        ("redis+ring://host:6379", "redis+cluster"),
        ("http+sentinel://host:6379/main", "redis+sentinel"),
        ("redis://::1:6379", "in brackets, such as redis://[::1]:6379"),
        ("ftp://host", "scheme"),
    ],
)
def test_a_url_of_another_kind_is_refused_in_a_sentence(bad: str, why: str) -> None:
    for make in (connect, connect_blocking):
        with pytest.raises(ConfigError, match="--redis") as caught:
            make(bad)
        assert why in str(caught.value)


def test_no_password_is_shown() -> None:
    url = "rediss+sentinel://user:secret@host:1,host:2/main?sentinel_password=other&ssl_ca_certs=/etc/ca.pem"
    shown = redacted(url)
    assert "secret" not in shown and "other" not in shown and "ssl_ca_certs=/etc/ca.pem" in shown


async def test_sentinels_that_are_away_are_said_to_be() -> None:
    store = connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main")
    try:
        with pytest.raises(StoreUnavailable, match="no answer"):
            await check(store, "redis+sentinel://127.0.0.1:1/main")
    finally:
        await store.aclose()
