"""A simulated deployment answers every request once, frees all its blocks, and repeats itself."""

import random
from collections.abc import Iterator
from operator import mul

import msgspec
import pytest

from infra.config.gateway import GatewayConfig
from simulation.deployment import LinkFigures
from simulation.simulation import DeploymentSimulation, SimulatedDeath
from tests.simulation.device import DEVICE, deployment, report, requests
from workloads.conversations import ConversationWorkload
from workloads.lengths import Lengths
from workloads.outcome import RequestOutcome
from workloads.request import TimedRequest, Workload, timed

HANDS_OFF = GatewayConfig(model="simulated", handoff="always")


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 3), (0, 1), (0, 2)])
def test_every_request_ends_once_and_every_block_is_free(prefill: int, decode: int) -> None:
    coming = requests(5.0, 20.0)
    simulation = DeploymentSimulation(deployment(prefill, decode))
    outcomes = simulation.run(coming)
    simulation.check_conservation()
    assert [each.due_s for each in outcomes] == [each.due_s for each in coming]
    for came, planned in zip(outcomes, coming, strict=True):
        assert came.timings is not None, came.error
        assert came.timings.output_tokens == planned.request.output_tokens == sum(came.gap_counts) + 1
        assert came.prompt_tokens == planned.request.prompt_tokens
        assert sum(map(mul, came.gaps_ms, came.gap_counts)) == pytest.approx(came.timings.e2e_ms - came.timings.ttft_ms)


def test_equal_seeds_make_equal_reports() -> None:
    first, second, other = (
        msgspec.json.encode(report(DeploymentSimulation(deployment(2, 2)).run(requests(6.0, 10.0, seed))))
        for seed in (3, 3, 4)
    )
    assert first == second != other


def test_a_lone_prompt_takes_its_steps_and_its_messages() -> None:
    """One prompt on an idle worker: two ways of the gateway's messages, and one step."""
    (came,) = DeploymentSimulation(deployment(0, 1)).run(requests(1.0, 0.5)[:1])
    assert came.timings is not None
    tokens = came.prompt_tokens
    steps = -(-tokens // DEVICE.step_tokens)
    costs = DEVICE.costs
    expected = steps * costs.step + costs.prompt_token * tokens + costs.pair * tokens * (tokens + 1) / 2 + 0.001
    assert came.timings.ttft_ms == pytest.approx(1000 * expected, rel=1e-6)


def test_what_is_planned_does_not_grow_with_the_requests() -> None:
    """A worker that becomes idle looks at deadlines once, not at that of each request that has ended long before."""
    simulation = DeploymentSimulation(deployment(0, 1))
    assert len(simulation.run(requests(0.2, 200.0))) > 30
    assert len(simulation.timeline) < 10


def test_kv_takes_the_time_of_its_link() -> None:
    """The second token of a handed-off prompt waits for the KV: bytes over the rate, and the messages of a handoff."""
    gaps = {}
    for name, link in (
        ("fast", LinkFigures(1e12, 0.0)),
        ("slow", LinkFigures(1e8, 0.0)),
        ("far", LinkFigures(1e12, 0.1)),
    ):
        described = msgspec.structs.replace(deployment(1, 1), link=link, gateway=HANDS_OFF)
        simulation = DeploymentSimulation(described)
        (came,) = simulation.run(requests(1.0, 0.5)[:1])
        simulation.check_conservation()
        assert came.timings is not None and simulation.fleet.workers["p1"].load().handoffs == 1
        gaps[name], ttft_ms = came.gaps_ms[0], came.timings.ttft_ms
        size = came.prompt_tokens * DEVICE.token_bytes
    assert gaps["fast"] == pytest.approx(10.3, abs=1.0), "a step"
    passing_ms, prompt_ms = 1000 * size / 1e8, ttft_ms
    exposed_ms = gaps["slow"] - gaps["fast"]
    assert passing_ms - prompt_ms < exposed_ms < passing_ms - prompt_ms / 2, "slices leave while the prompt is computed"
    assert 50.0 <= gaps["far"] - gaps["fast"] <= 200.0, "Commit, and what Open and Grant leave behind the prompt"


def test_a_small_window_bounds_a_far_link() -> None:
    """A link that is far lets no more than a window's bytes through in a round trip."""
    link, gaps = LinkFigures(1e9, 0.05), []
    for window in (1 << 30, 1 << 22):
        described = deployment(1, 1)
        transfer = msgspec.structs.replace(described.transfer, window=window, frame=1 << 20)
        described = msgspec.structs.replace(described, link=link, gateway=HANDS_OFF, transfer=transfer)
        (came,) = DeploymentSimulation(described).run(requests(1.0, 0.5)[:1])
        gaps.append(came.gaps_ms[0])
    trips = came.prompt_tokens * DEVICE.token_bytes / (1 << 22) - 1
    assert gaps[1] - gaps[0] > 0.7 * trips * 50.0


def test_shared_prefixes_are_found() -> None:
    outcomes = DeploymentSimulation(deployment(0, 1)).run(requests(5.0, 10.0, shared=800))
    assert 0.4 < report(outcomes).cached_share < 0.6


@pytest.mark.parametrize("dies", ["p1", "d1"])
def test_a_worker_that_dies_loses_no_request(dies: str) -> None:
    coming = requests(6.0, 20.0)
    simulation = DeploymentSimulation(msgspec.structs.replace(deployment(2, 2), gateway=HANDS_OFF))
    outcomes = simulation.run(coming, [SimulatedDeath(dies, 8.0)])
    simulation.check_conservation()
    assert len(outcomes) == len(coming) and not report(outcomes).errors
    for came, planned in zip(outcomes, coming, strict=True):
        assert came.timings is not None and came.timings.output_tokens == planned.request.output_tokens
    untroubled = DeploymentSimulation(msgspec.structs.replace(deployment(2, 2), gateway=HANDS_OFF)).run(coming)
    later = [came.ended_s - other.ended_s for came, other in zip(outcomes, untroubled, strict=True)]
    assert max(later) > 0.2, "the gateway notices an end after half a second"


def test_without_workers_requests_fail() -> None:
    outcomes = DeploymentSimulation(deployment(0, 1)).run(requests(2.0, 4.0), [SimulatedDeath("d1", 0.0)])
    errors = {each.error for each in outcomes}
    assert errors <= {"no_workers", "deadline_exceeded", "retries_failed"} and len(outcomes) > 2


def test_conversations_go_on_behind_their_answers_and_find_the_text_before() -> None:
    first = Workload(Lengths(320, 320), Lengths(20, 20))
    talks = ConversationWorkload(first, Lengths(3, 3), Lengths(40, 40), 2.0).requests(random.Random(1))
    outcomes = DeploymentSimulation(deployment(1, 1)).run(timed(iter([0.0, 1.0]), talks, 2))
    assert len(outcomes) == 6 and all(each.timings is not None for each in outcomes)
    assert sorted(each.prompt_tokens for each in outcomes) == [320, 320, 380, 380, 440, 440]
    assert sum(each.cached_tokens > 0 for each in outcomes) == 4


def test_requests_are_asked_for_one_by_one_and_outcomes_are_handed_on_when_they_end() -> None:
    """So neither the requests nor the outcomes of a day are in memory."""
    taken: list[float] = []
    came: list[RequestOutcome] = []
    simulation = DeploymentSimulation(deployment(0, 1))

    def asked() -> Iterator[TimedRequest]:
        for each in requests(4.0, 10.0):
            assert simulation.timeline.now >= max(taken[:-1], default=0.0), "all but the last have arrived"
            taken.append(each.due_s)
            yield each

    def ended(outcome: RequestOutcome) -> None:
        assert outcome.ended_s == simulation.timeline.now
        came.append(outcome)

    simulation.play(asked(), ended)
    assert len(came) == len(taken) > 20
    assert sorted(came, key=lambda each: each.due_s) == DeploymentSimulation(deployment(0, 1)).run(requests(4.0, 10.0))
