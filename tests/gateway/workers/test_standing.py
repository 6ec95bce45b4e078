"""How workers stand is seen from what they report, whosever the prompts are that wait there."""

from math import exp

import pytest

from gateway.workers.standing import StandingSurvey
from gateway.workers.worker import Worker
from pricing.routes.backlog import Owner, TenantTokens
from pricing.routes.route import Choice, Route
from pricing.scaling.demand import DEMAND_MEMORY_S, Demand
from pricing.scaling.standing import Standing
from pricing.step_costs.steps import DecodeYield
from tests.gateway.workers.test_routes_by_cost import NOW_S, STEP_COSTS, busy, worker


def seen(workers: list[Worker], demand: Demand | None = None, in_line: int = 0) -> Standing:
    look = StandingSurvey(workers, demand or Demand(NOW_S), NOW_S)
    for _ in look.steps():
        pass
    return look.standing(in_line)


def test_roles_stand_apart_and_by_what_waits() -> None:
    idle, queued = worker("idle", "prefill"), worker("queued", "prefill", busy(tokens=2000))
    decodes = worker("decodes", "decode", busy(sequences=9, free=250))
    standing = seen([idle, queued, decodes], in_line=70)
    assert standing.prefill.queued_tokens == 2000 and standing.prefill.waiting_tokens == 70
    first, second = standing.prefill.workers
    assert first.ttft == first.ttft_alone == second.ttft_alone == pytest.approx(0.266, abs=0.01)
    assert second.ttft is not None and second.ttft == pytest.approx(2.266 + 4 * STEP_COSTS.step, abs=0.2)
    (decode,) = standing.decode.workers
    assert decode.tpot == pytest.approx(STEP_COSTS.decode_seconds(10, 1000))
    assert decode.tpot_alone == pytest.approx(STEP_COSTS.decode_seconds(1, 100))
    decodes.decode_yield = DecodeYield(2.0, 1.0)
    (decode,) = seen([decodes]).decode.workers
    assert decode.tpot == pytest.approx(STEP_COSTS.decode_seconds(10, 1000) / 2), "of a step it has two tokens"
    assert decode.tpot_alone == pytest.approx(STEP_COSTS.decode_seconds(1, 100) / 2)
    assert standing.decode.free_blocks == 0.25 and standing.decode.waiting_tokens == 0


def test_a_tenant_that_floods_counts_as_everybody() -> None:
    backlog = busy(tokens=5000)
    flooded = worker("a", "prefill", type(backlog)(5, 5000, shares=(TenantTokens(Owner(1), 5000),)))
    (one,) = seen([flooded]).prefill.workers
    assert one.ttft is not None and one.ttft > 5.0


def test_where_decode_workers_serve_whole_requests_the_line_is_theirs() -> None:
    assert seen([worker("a", "decode")], in_line=70).decode.waiting_tokens == 70


def test_what_comes_is_counted_as_workers_that_it_keeps_busy() -> None:
    demand = Demand(0.0)
    for number in range(2000):
        demand.came(Choice(Route("p", "d"), 100, 20, 0.1, 0.1, 0.05), number / 20)
        demand.came(Choice(Route("", "d"), 100, 20, 0.1, 0.1, 0.01), number / 20)
    assert demand.work("prefill", 100.0) == pytest.approx(1.0, rel=0.02)
    assert demand.work("decode", 100.0) == pytest.approx(0.2, rel=0.02)
    assert demand.usual_tokens == pytest.approx(100.0) and demand.usual_start == pytest.approx(20.0)
    assert demand.work("prefill", 100.0 + DEMAND_MEMORY_S) == pytest.approx(exp(-1), rel=0.05)


def test_a_gateway_that_has_just_begun_knows_what_comes() -> None:
    demand = Demand(0.0)
    for number in range(60):
        demand.came(Choice(Route("p", "d"), 100, 0, 0.1, 0.1, 0.05), number / 20)
    assert demand.work("prefill", 3.0) == pytest.approx(1.0, rel=0.05)
