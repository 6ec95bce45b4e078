"""Commands are counted by a real Redis server, and the system's own are subtracted."""

from benchmarks.front.commands import Totals, between, each_of, totals
from benchmarks.front.system import Shape, front
from benchmarks.processes.python_path import ROOT
from infra.redis.clients import connect_blocking


def test_a_request_is_charged_what_the_system_does_not_ask_by_itself() -> None:
    """A quiet time of 2 s had 10 of one command; 4 s with 20 requests had 60 of it, and 40 of another."""
    quiet = Totals(2.0, {"xreadgroup": 10}, 1000, 500)
    found = each_of(20, Totals(4.0, {"xreadgroup": 60, "xadd": 40}, 42_000, 3000), quiet)
    assert found.calls == {"xreadgroup": 2.0, "xadd": 2.0}
    assert (found.received, found.sent) == (2000.0, 100.0)


def test_counts_are_a_real_servers() -> None:
    with front(ROOT, Shape(workers=0, gateways=0)) as system:
        store = connect_blocking(system.redis)
        try:
            before = totals(store)
            for _ in range(3):
                store.xadd("stream", {"field": b"x" * 4096})
            counted = between(before, totals(store))
        finally:
            store.close()
    assert counted.calls["xadd"] == 3 and "info" not in counted.calls
    assert 3 * 4096 < counted.received < 4 * 4096
