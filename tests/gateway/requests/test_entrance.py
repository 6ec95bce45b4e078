"""Shows when a new request may begin: by what its route is expected to give, who runs there, and who came before."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import pytest

from contracts.ids import SampleKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from contracts.slo import NO_OBJECTIVE, Objective
from gateway.errors import APIError
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.entrance import Entrance, Visit
from gateway.requests.request import Request
from gateway.requests.sample import AdmittedPrompt, Sample
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from infra.config.gateway import GatewayConfig
from pricing.routes.backlog import owner_of
from pricing.routes.route import Choice, Route
from tests.waiting import DEADLINE_S

ROUTE = Route("prefill", "decode")


def entrance(**settings: Any) -> Entrance:
    return Entrance(GatewayConfig(model="m", **settings))


def request(
    name: str,
    objective: Objective = NO_OBJECTIVE,
    waited: float = 0.0,
    tenant: str = "",
    granted: Objective | None = None,
) -> Request:
    """Makes a request; its objective is one of its key's, unless it says what is `granted`."""
    prompt = AdmittedPrompt(
        Prompt([5, 6, 7], 3, tenant=tenant),
        Sampling(1),
        Limits(100),
        samples=1,
        objective=objective,
        promise=objective if granted is None else objective.bounded_by(granted),
    )
    received = time.monotonic() - waited
    sample = Sample(SampleKey(name, 0), prompt, received + 100.0)
    return Request([Stream(sample, BytePieces(chr).stream(), received, False, Metrics("m", []))])


def choice(ttft: float | None, tpot: float | None, **known: Any) -> Choice:
    return Choice(ROUTE, 3, 0, ttft, tpot, **known)


async def test_what_cannot_keep_its_objective_is_refused_at_once() -> None:
    with Visit(entrance(), request("r", Objective(ttft_ms=500.0))) as visit, pytest.raises(APIError) as caught:
        visit.may_begin(choice(3.0, 0.01))
    error = caught.value
    assert (error.status, error.code) == (429, "objective_out_of_reach")
    assert error.retry_after == pytest.approx(2.5, abs=0.05)
    assert "expected in 3.00 s" in error.message and "within 0.5 s" in error.message


async def test_a_promise_heeds_how_fast_first_tokens_come() -> None:
    of, now = entrance(), time.monotonic()
    owner = owner_of("", 1.0)
    of.pace.begins("r-1", 1000, owner, now - 10)
    of.pace.begins("r-2", 1000, owner, now - 1)
    of.pace.ends("r-1", now - 1, came=True)
    with Visit(of, request("r-3", Objective(ttft_ms=500.0))) as visit, pytest.raises(APIError) as caught:
        visit.may_begin(choice(0.1, None))
    assert caught.value.code == "objective_out_of_reach", "1000 tokens took 9 s, and as many are awaited"


async def test_what_nobody_can_predict_goes() -> None:
    with Visit(entrance(), request("r", Objective(ttft_ms=1.0, tpot_ms=1.0))) as visit:
        assert visit.may_begin(choice(None, None))


async def test_a_promise_to_one_holds_others_back() -> None:
    of, promised = entrance(), request("r-1", Objective(tpot_ms=50.0))
    of.begins(promised.samples, ROUTE.decode)
    with Visit(of, request("r-2")) as visit:
        assert not visit.may_begin(choice(0.1, 0.06)), "it would break the promise"
        await visit.wait()
        assert not visit.may_begin(choice(0.1, 0.06))
        assert visit.may_begin(choice(0.1, 0.04)), "fewer are there"
    of.ends(promised.samples[0])
    with Visit(of, request("r-3")) as visit:
        assert visit.may_begin(choice(0.1, 0.06)), "nobody wants anything any more"


async def test_what_is_wanted_of_a_decode_worker_is_what_the_strictest_there_has_asked_for() -> None:
    of, objectives = entrance(), {"a": 80.0, "b": 50.0, "c": None}
    running = {name: request(name, Objective(tpot_ms=wanted)) for name, wanted in objectives.items()}
    of.begins([*running["a"].samples, *running["b"].samples], "d1")
    of.begins(running["c"].samples, "d2")
    assert of.wanted.by_worker == {"d1": 0.05}, "who has asked for nothing wants nothing, also by any usual limit"
    of.ends(running["b"].samples[0])
    assert of.wanted.by_worker == {"d1": 0.08}


async def test_who_waits_is_not_passed_by_who_comes() -> None:
    of = entrance(max_requests=1)
    running = request("r-1")
    of.begins(running.samples, ROUTE.decode)
    with Visit(of, request("r-2")) as second, Visit(of, request("r-3")) as third:
        assert not second.may_begin(choice(None, None))
        await second.wait()
        of.ends(running.samples[0])
        assert not third.may_begin(choice(None, None)), "it came later"
        assert second.may_begin(choice(None, None)) and not len(of.gate)


async def test_who_waits_too_long_is_refused_although_it_is_not_its_turn() -> None:
    of = entrance(max_requests=1)
    of.begins(request("r-1").samples, ROUTE.decode)
    patient, hasty = request("r-2", tenant="a"), request("r-3", Objective(ttft_ms=200.0), 0.19, tenant="b")
    with Visit(of, patient) as first, Visit(of, hasty) as second:
        await first.wait()
        await second.wait()
        with pytest.raises(APIError, match=r"within 0\.2 s"):
            while not second.may_begin(choice(0.05, None)):
                await second.wait()
        assert len(of.gate) == 2
    assert not len(of.gate), "who leaves is not in line"


async def test_one_that_was_looked_at_in_time_and_lost_its_turn_is_refused_when_it_is_late() -> None:
    of = entrance(max_requests=1)
    of.begins(request("r-1").samples, ROUTE.decode)
    hasty, urgent = request("r-2", Objective(ttft_ms=400.0), 0.2), request("r-3", Objective(ttft_ms=100.0))
    with Visit(of, hasty) as first, Visit(of, urgent) as second:
        assert not first.may_begin(choice(0.001, None)), "there is no room"
        waits = asyncio.create_task(first.wait())
        await asyncio.sleep(0)
        others = asyncio.create_task(second.wait())
        await waits
        with pytest.raises(APIError, match=r"within 0\.4 s"):
            async with asyncio.timeout(DEADLINE_S):
                while not first.may_begin(choice(0.001, None)):
                    await first.wait()
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


async def test_a_request_that_waits_for_a_better_moment_blocks_no_request_that_could_begin() -> None:
    of = entrance(max_requests=3)
    of.begins(request("r-1").samples, ROUTE.decode)
    strict, calm, late = request("r-2", Objective(tpot_ms=1.0), tenant="a"), request("r-3"), request("r-4")
    with Visit(of, strict) as first, Visit(of, calm) as second, Visit(of, late) as third:
        for _ in range(3):  # also when it has been looked at again
            assert not first.may_begin(choice(0.1, 0.01)), "others run there"
            await first.wait()
        assert not first.may_begin(choice(0.1, 0.01))
        first_waits = asyncio.ensure_future(first.wait())
        await asyncio.sleep(0)  # it stands aside now
        assert second.may_begin(choice(0.1, 0.01))
        of.begins(calm.samples, ROUTE.decode)
        assert third.may_begin(choice(0.1, 0.01))
        of.begins(late.samples, ROUTE.decode)
        await first_waits
        assert not first.may_begin(choice(0.1, 0.0005)), "its moment is good, and there is no room"
        of.ends(calm.samples[0])
        assert first.may_begin(choice(0.1, 0.0005))
    assert not len(of.gate)


async def test_a_request_that_waits_behind_a_promise_blocks_no_request_that_keeps_it() -> None:
    of, promised = entrance(), request("r-1", Objective(tpot_ms=50.0), tenant="a")
    of.begins(promised.samples, ROUTE.decode)
    with Visit(of, request("r-2", tenant="b")) as second, Visit(of, request("r-3", tenant="c")) as third:
        assert not second.may_begin(choice(0.1, 0.06))
        waits = asyncio.ensure_future(second.wait())
        await asyncio.sleep(0)
        assert third.may_begin(choice(0.1, 0.04)), "it has a shorter text, or another route"
        of.ends(promised.samples[0])
        await waits
        assert second.may_begin(choice(0.1, 0.06)), "it is looked at when an answer has ended"


async def test_a_header_alone_holds_nobody_back() -> None:
    of, asked = entrance(), request("r-1", Objective(tpot_ms=3.0), granted=NO_OBJECTIVE)
    of.begins(asked.samples, ROUTE.decode)
    with Visit(of, request("r-2")) as visit:
        assert visit.may_begin(choice(0.1, 0.06)), "any client may send headers"
    granted = request("r-3", Objective(tpot_ms=3.0), granted=Objective(tpot_ms=50.0))
    of.begins(granted.samples, ROUTE.decode)
    with Visit(of, request("r-4")) as visit:
        assert visit.may_begin(choice(0.1, 0.04)) and not visit.may_begin(choice(0.1, 0.06))


@pytest.mark.parametrize("objective", [Objective(ttft_ms=500.0), Objective(tpot_ms=20.0)])
async def test_an_idle_worker_takes_what_only_its_start_says_it_cannot_keep(objective: Objective) -> None:
    with Visit(entrance(), request("r", objective)) as visit:
        assert visit.may_begin(choice(3.0, 0.05, ttft_guessed=True, tpot_guessed=True, alone=True))
    with Visit(entrance(), request("r", objective)) as visit, pytest.raises(APIError) as caught:
        visit.may_begin(choice(3.0, 0.05, alone=True))
    assert caught.value.code == "objective_out_of_reach", "it has run steps, and knows"


async def test_a_tenants_requests_that_wait_for_a_better_moment_are_bounded() -> None:
    of = entrance(max_waiting=4)
    busy = choice(0.1, 0.01)
    with ExitStack() as leaving:
        visits = [
            leaving.enter_context(Visit(of, request(f"r-{n}", Objective(tpot_ms=1.0), tenant=tenant)))
            for n, tenant in enumerate("aaab")
        ]
        for visit in visits:
            assert not visit.may_begin(busy)
        *waiting, refused = [asyncio.ensure_future(visits[n].wait()) for n in (0, 1, 3, 2)]
        with pytest.raises(APIError, match="2 requests of this tenant wait"):
            await refused
        assert len(of.gate) == 3
        of.gate.look()
        await asyncio.gather(*waiting)
    assert not len(of.gate) and not of.gate.tokens
