"""Every worker's metrics are on exactly one gateway's page, and few change hands when a gateway comes or goes."""

from collections import Counter

from msgspec import structs

from gateway.metrics.ownership import PageOwner
from infra.redis.records import GatewayRecord, WorkerRecord
from pricing.routes.links import HostLocation

WORKERS = [
    WorkerRecord(f"e{number}", "decode", "", "", "m", "f", "c", 16, 99, "cpu", "fp32", 0.0) for number in range(200)
]


def gateways(count: int) -> list[GatewayRecord]:
    return [GatewayRecord(f"g{number}", "", "m", 0.0) for number in range(count)]


def owners(count: int) -> dict[str, str]:
    """Returns the page of each worker; fails if a worker is on no page, or on several."""
    found: dict[str, list[str]] = {worker.epoch: [] for worker in WORKERS}
    for gateway in gateways(count):
        owner = PageOwner(gateway.epoch, gateways(count))
        for worker in filter(owner.owns, WORKERS):
            found[worker.epoch].append(gateway.epoch)
    assert all(len(pages) == 1 for pages in found.values())
    return {worker: pages[0] for worker, pages in found.items()}


def test_each_worker_is_on_one_page_and_a_new_gateway_takes_over_only_its_share() -> None:
    three, four = owners(3), owners(4)
    assert min(Counter(three.values()).values()) > 40
    moved = [worker for worker in three if three[worker] != four[worker]]
    assert 20 < len(moved) < 80 and {four[worker] for worker in moved} == {"g3"}


def test_gateways_of_one_port_are_one_page() -> None:
    group = [structs.replace(gateway, group="port") for gateway in gateways(3)]
    assert all(PageOwner("port", group).owns(worker) for worker in WORKERS)


def test_a_gateway_that_sees_no_record_shows_all_workers() -> None:
    assert all(PageOwner("g0").owns(worker) for worker in WORKERS)


def test_a_worker_that_was_started_again_stays_on_its_page() -> None:
    pages = gateways(5)
    lives = [
        structs.replace(WORKERS[0], epoch=f"life{number}", service="decode-0", place=HostLocation("host"))
        for number in range(20)
    ]
    assert sum(any(PageOwner(page.epoch, pages).owns(life) for life in lives) for page in pages) == 1
