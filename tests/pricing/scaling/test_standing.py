"""What is predicted for more workers, or fewer, follows from how they stand."""

from math import inf

import pytest
from msgspec import json, structs

from pricing.scaling.standing import RoleStanding, Standing, WorkerStanding, merged

ONE = WorkerStanding(
    "a", ttft=1.1, ttft_alone=0.1, tpot=0.03, tpot_alone=0.01, sequences=10, blocks=100, free_blocks=40
)
TWO = RoleStanding((ONE, structs.replace(ONE, worker="b")), work=1.5, usual_tokens=100.0)


def test_what_waits_is_spread_over_as_many_workers_as_there_are() -> None:
    assert TWO.ttft(2) == pytest.approx(1.1)
    assert TWO.ttft(1) == pytest.approx(2.1)
    assert TWO.ttft(4) == pytest.approx(0.6)
    waits = structs.replace(TWO, waiting_tokens=1000)
    assert waits.ttft(2) == pytest.approx(1.1 + 10 * 0.1 / 2)


def test_tokens_that_are_asked_of_fewer_workers_come_slower_until_they_pile_up() -> None:
    assert TWO.tpot(2) == pytest.approx(0.03)
    # 2 ms more for each sequence: 667 tokens a second on one worker take 1.33 s of each second
    assert TWO.tpot(1) == inf
    # 222 on each of three: 0.01 / (1 - 0.444)
    assert TWO.tpot(3) == pytest.approx(0.018)
    assert TWO.used_blocks(2) == pytest.approx(0.6)
    assert TWO.used_blocks(1) == pytest.approx(1.2)
    crowded = RoleStanding((structs.replace(ONE, waiting=10),))
    assert crowded.used_blocks(1) == pytest.approx(1.2) and crowded.free_blocks == 0.4


@pytest.mark.parametrize("lacks", [{"usable": False}, {"draining": True}, {"ttft": None}])
def test_only_workers_that_serve_count(lacks: dict[str, object]) -> None:
    role = RoleStanding((structs.replace(ONE, **lacks),))
    assert (role.serving, role.ttft(1), role.tpot(1)) == ([], None, None)


def test_several_gateways_see_the_same_workers_and_have_each_their_own_prompts() -> None:
    young = Standing(structs.replace(TWO, workers=TWO.workers[:1], waiting_tokens=7), TWO)
    both = merged([young, Standing(TWO, TWO)])
    assert len(both.prefill.workers) == 2 and both.prefill.work == 3.0 and both.prefill.waiting_tokens == 7
    assert merged([]) == Standing()
    assert json.decode(json.encode(both), type=Standing) == both
