"""Draft tokens, adapters, keys and host memory in simulated time: formulas hold, and the code that serves decides."""

from collections.abc import Iterator, Sequence

import pytest
from msgspec import structs

from contracts.slo import Objective
from infra.keys.api_key import KeyOptions, make_key
from pricing.rates import MOVE_SECONDS
from simulation.adapters import SimulatedAdapters
from simulation.deployment import SimulatedDeployment, SimulatedDevice
from simulation.drafts import SimulatedDrafts
from simulation.senders import KeyTraffic
from simulation.simulation import DeploymentSimulation
from tests.simulation.device import DEVICE, STEP_COSTS, deployment, report, requests
from workloads.outcome import RequestOutcome
from workloads.request import PlannedRequest, Span, TimedRequest


def one_worker(**changes: object) -> SimulatedDeployment:
    return SimulatedDeployment(prefill=0, decode=1, device=structs.replace(DEVICE, **changes))


def run(described: SimulatedDeployment, coming: Sequence[TimedRequest]) -> list[RequestOutcome]:
    simulation = DeploymentSimulation(described)
    outcomes = simulation.run(coming)
    simulation.check_conservation()
    assert len(outcomes) == len(coming)
    return outcomes


def texts(gap_s: float, seeds: Sequence[int], tokens: int, output: int) -> list[TimedRequest]:
    planned = (PlannedRequest(output, spans=(Span(seed, tokens),)) for seed in seeds)
    return [TimedRequest(gap_s * at, each) for at, each in enumerate(planned)]


def tpots(outcomes: Sequence[RequestOutcome]) -> Iterator[float]:
    for each in outcomes:
        assert each.timings is not None, each.error
        yield each.timings.tpot_ms() / 1000


# draft tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8])
def test_a_step_yields_what_the_acceptance_rate_says(acceptance: float) -> None:
    """1 + a + a² + … tokens of a step, where a row costs nothing; less what sequences rest after rejected drafts."""
    drafts = SimulatedDrafts(most=4, acceptance=acceptance)
    coming = texts(12.0, range(8), 100, 401)
    plain, drafted = (list(tpots(run(one_worker(drafts=each), coming))) for each in (None, drafts))
    expected = sum(acceptance**depth for depth in range(5))
    assert 0.9 * expected < sum(plain) / sum(drafted) < 1.03 * expected


@pytest.mark.parametrize("most", [1, 5, 16])
def test_a_tree_yields_what_its_chances_say(most: int) -> None:
    """The tokens of a step are 1 and the chance of each choice: that of its path from the text (Cai et al., 2024)."""
    drafts = SimulatedDrafts(most=most, acceptance=0.65, pass_seconds=lambda work: 0.0, heads=4)
    tree, reached = drafts.tree(), list[float]()
    for chance, parent in zip(drafts.chances(), tree.parents, strict=True):
        reached.append(chance * (reached[parent] if parent >= 0 else 1.0))
    assert reached == sorted(reached, reverse=True) and (most == 1 or tree.parents_of(most)), "a tree, likeliest first"
    coming = texts(12.0, range(8), 100, 401)
    plain, drafted = (list(tpots(run(one_worker(drafts=each), coming))) for each in (None, drafts))
    assert 0.93 * (1 + sum(reached)) < sum(plain) / sum(drafted) < 1.03 * (1 + sum(reached))


@pytest.mark.parametrize(("pass_s", "least", "most"), [(0.0002, 1.9, 2.8), (0.05, 0.85, 1.0)])
def test_the_controller_drafts_only_where_it_pays(pass_s: float, least: float, most: float) -> None:
    drafts = SimulatedDrafts(most=4, acceptance=0.7, pass_seconds=lambda work: pass_s, stores=True)
    coming = texts(15.0, range(4), 100, 601)
    plain, drafted = (sum(tpots(run(one_worker(drafts=each), coming))) for each in (None, drafts))
    assert least < plain / drafted < most


def test_drafts_end_every_request_at_its_length_behind_handoffs() -> None:
    described = deployment(1, 2)
    drafts = SimulatedDrafts(most=3, acceptance=0.6, pass_seconds=lambda work: 0.001)
    coming = requests(6.0, 10.0)
    outcomes = run(structs.replace(described, device=structs.replace(DEVICE, drafts=drafts)), coming)
    for came, planned in zip(outcomes, coming, strict=True):
        assert came.timings is not None and came.timings.output_tokens == planned.request.output_tokens


# adapters ---------------------------------------------------------------------------------------------------------


def test_adapters_share_no_prefix_and_take_their_seconds() -> None:
    held = SimulatedAdapters(("a", "b"), lambda rows, adapters: 0.003 * adapters)
    coming = texts(2.0, [1] * 12, 320, 20)
    outcomes = run(one_worker(adapters=held), coming)
    assert [each.cached_tokens == 0 for each in outcomes].count(True) == 2, "the first request of each adapter"
    plain = run(one_worker(), coming)
    assert [each.cached_tokens == 0 for each in plain].count(True) == 1
    for with_adapter, without in zip(tpots(outcomes), tpots(plain), strict=True):
        assert with_adapter - without == pytest.approx(0.003, rel=0.01)


# keys -------------------------------------------------------------------------------------------------------------


def key(name: str, share: float, **options: object) -> KeyTraffic:
    return KeyTraffic(make_key(name, structs.replace(KeyOptions(), **options), 0.0).record, share)


def test_a_flood_raises_only_its_own_ttft_and_limits_hold() -> None:
    coming = requests(30.0, 8.0)
    served: dict[bool, dict[str, list[RequestOutcome]]] = {}
    for limited in (False, True):
        keys = [key("quiet", 1.0), key("flood", 15.0, requests_per_minute=60 if limited else 0)]
        outcomes = run(structs.replace(one_worker(), keys=keys), coming)
        served[limited] = {name: [each for each in outcomes if each.sender == name] for name in ("quiet", "flood")}
    means = {name: report(outcomes).ttft_ms.mean for name, outcomes in served[False].items()}
    assert means["quiet"] < 1000.0 < means["flood"] / 4
    refused = [each for each in served[True]["flood"] if each.error]
    assert {each.error for each in refused} == {"rate_limit_exceeded"}
    assert len(served[True]["flood"]) - len(refused) == 60, "all come within one minute"
    assert not any(each.error for each in served[True]["quiet"])


def test_tenants_share_no_prefix_and_a_slot_comes_back() -> None:
    keys = [key("one", 1.0, concurrency=1), key("two", 1.0)]
    outcomes = run(structs.replace(one_worker(), keys=keys), texts(2.0, [1] * 12, 320, 20))
    assert not any(each.error for each in outcomes), "each request has ended when the next one comes"
    assert [each.cached_tokens == 0 for each in outcomes].count(True) == 2
    at_once = run(structs.replace(one_worker(), keys=[key("one", 1.0, concurrency=2)]), texts(0.0, range(5), 320, 20))
    assert [each.error for each in at_once].count("rate_limit_exceeded") == 3


def test_an_objective_refuses_what_could_not_keep_it() -> None:
    coming = requests(30.0, 8.0)
    kept = report(run(structs.replace(one_worker(), objective=Objective(ttft_ms=1000.0)), coming))
    assert kept.errors.get("objective_out_of_reach", 0) > 0.2 * len(coming)
    assert kept.ttft_ms.p90 < 1100.0 < report(run(one_worker(), coming)).ttft_ms.p90


# host memory ------------------------------------------------------------------------------------------------------


def test_evicted_blocks_come_back_at_the_rate_of_the_link() -> None:
    """A text, two others that evict it, and the text again: its blocks come from host memory, or are computed again."""
    rate, pool = 1e9, 2 * 1600 // DEVICE.block_tokens
    coming = texts(5.0, [1, 2, 3, 1], 1600, 1)

    def last(device: SimulatedDevice) -> RequestOutcome:
        return run(SimulatedDeployment(prefill=0, decode=1, device=device), coming)[-1]

    small = structs.replace(DEVICE, blocks=pool + 1, step_tokens=2048)
    again = last(small)
    back = last(structs.replace(small, host_blocks=1000, host_bytes_per_s=rate))
    slow = last(structs.replace(small, host_blocks=1000, host_bytes_per_s=1e6))
    assert back.timings is not None and again.timings is not None
    assert again.cached_tokens <= 16 < back.cached_tokens
    left = 1600 - back.cached_tokens
    computed = (
        STEP_COSTS.step
        + STEP_COSTS.prompt_token * left
        + STEP_COSTS.pair * left * (back.cached_tokens + (left + 1) / 2)
    )
    moved_bytes = back.timings.ttft_ms / 1000 - computed - 0.001 - MOVE_SECONDS
    blocks = moved_bytes * rate / (DEVICE.token_bytes * DEVICE.block_tokens)
    assert blocks == pytest.approx(round(blocks), abs=1e-3) and back.cached_tokens // 16 <= round(blocks) <= 200
    assert back.timings.ttft_ms < again.timings.ttft_ms
    assert slow.cached_tokens <= 16, "moving takes longer than computing, so they stay there"
