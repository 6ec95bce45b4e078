"""The split system on two hosts, whose link is slow, loses packets, and is cut for a while."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pricing.routes.links import Nearness, nearness
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.host import Host, need_root_and
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import System
from tests.e2e.harness.two_hosts import ADDRESSES, ADDRESSES_6, DEVICE, two_hosts
from tests.waiting import wait_until

DELAY_S = 0.02  # seconds one way, so that a round trip takes 40 ms at least
LOSS_SHARE = 0.01
LONG_ANSWER_TOKENS = 150
LENGTHS = [1, 15, 16, 17, 40, 64, 65, 100, 128, 200, 300, 511]
WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56", "--kv-transport", "tcp")
PORTS = range(20000, 20004)
REACHED = ("--announce", DEVICE, "--ports", f"{PORTS.start}-{PORTS.stop - 1}", "--link-connections", "3")


@pytest.fixture(autouse=True)
def needs() -> None:
    need_root_and(ip="iproute2")


def test_the_split_system_gives_the_references_tokens_across_the_link(tmp_path: Path) -> None:
    """The decode worker on one host, and by IPv6; all else on the other, and by IPv4.

    Workers announce the interface of the link, listen on ports of a range, and pass sealed KV over three connections.
    While the link is cut, the prefill worker goes on with the answers; afterwards handoffs cross the link again.
    """
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, LENGTHS, new_tokens=24)
    long_runs = references(model, LENGTHS[3:11], LONG_ANSWER_TOKENS, seed=1)
    with two_hosts(DELAY_S, LOSS_SHARE, seed=2) as hosts:

        def host_of(name: str) -> Host:
            return replace(hosts.b, address=ADDRESSES_6[1]) if name.startswith("decode") else hosts.a

        with System(tmp_path, model, worker=[*WORKER_OPTIONS, *REACHED], host_of=host_of) as system:
            with hosts.a.inside():
                for some in (runs[:1], runs[1:]):  # the first pays for the connections
                    assert complete_all(system.gateway_url, some) == [run.tokens for run in some]
            records = {record.role: record for record in system.wait_until_idle()}
            decode = records["decode"]
            finished = system.finished()
            streams = Streams(system.gateway_url, long_runs)
            with hosts.a.inside():  # and so are the streams' threads
                streams.begin_to_flow(4)
                hosts.loss = 1.0
                assert streams.flowing() > 0
                assert streams.finish() == 4
                assert system.retried() > 0
                hosts.loss = LOSS_SHARE
                wait_until(lambda: system.usable() == 2, "the gateway to reach the decode worker again")
                streams.begin(2)
                assert streams.finish() == 6
            system.wait_until_idle()
            again = system.finished()[-2:]
        to_decode, to_prefill = hosts.directions
    urls = [urlsplit(each) for each in (records["prefill"].address, decode.address, decode.handoff_address)]
    assert [url.hostname for url in urls] == [ADDRESSES[0], ADDRESSES_6[1], ADDRESSES_6[1]]
    assert all(url.port in PORTS for url in urls)
    assert nearness(records["prefill"].place, decode.place) is Nearness.HOST  # two namespaces of one machine
    assert records["prefill"].links[0].bytes_per_second > 0
    assert decode.load.handoffs == len(runs) and decode.load.prompt_tokens == 0
    assert decode.load.handoff_bytes < to_decode.carried_bytes  # all KV went over this link
    assert to_decode.dropped > 0 and to_prefill.dropped > 0
    assert all(record.attempts == 1 for record in finished)  # nobody was taken for dead
    assert {(record.transport, record.sealed) for record in [*finished, *again]} == {("tcp", True)}
