"""Two hosts that are joined by a slow link which loses packets: the link itself, and the split system across it."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pricing.links import Nearness, nearness
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.host import Host, need_root_and
from tests.e2e.harness.system import System
from tests.e2e.harness.two_hosts import ADDRESSES, ADDRESSES_6, DEVICE, two_hosts

DELAY = 0.02  # seconds one way, so that a round trip takes 40 ms at least
LOSS = 0.01
LENGTHS = [1, 15, 16, 17, 40, 64, 65, 100, 128, 200, 300, 511]
WORKER = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56", "--kv-transport", "tcp")
PORTS = range(20000, 20004)
REACHED = ("--announce", DEVICE, "--ports", f"{PORTS.start}-{PORTS.stop - 1}", "--link-connections", "3")


@pytest.fixture(autouse=True)
def needs() -> None:
    need_root_and(ip="iproute2")


@pytest.mark.timeout(180)
def test_the_split_system_gives_the_references_tokens_across_the_link(tmp_path: Path) -> None:
    """The decode worker on one host, and by IPv6; all else on the other, and by IPv4.

    Workers announce the interface of the link, listen on ports of a range, and pass KV over three connections.
    """
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, LENGTHS, new_tokens=24)
    with two_hosts(DELAY, LOSS, seed=2) as hosts:

        def host_of(name: str) -> Host:
            return replace(hosts.b, address=ADDRESSES_6[1]) if name.startswith("decode") else hosts.a

        with System(tmp_path, model, worker=[*WORKER, *REACHED], host_of=host_of) as system:
            with hosts.a.inside():
                for some in (runs[:1], runs[1:]):  # the first pays for the connections
                    assert complete_all(system.gateway_url, some) == [run.tokens for run in some]
            records = {record.role: record for record in system.wait_until_idle()}
            decode = records["decode"]
            finished = system.finished()
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
