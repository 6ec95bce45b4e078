"""The load generator against a server that answers as the gateway does."""

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from benchmarks import load
from benchmarks.load import LoadConfig, Result, arrivals, report, run
from contracts.errors import ConfigError
from contracts.slo import SLO, Timings
from dashboard.prompts import ExamplePrompt
from tests.dashboard.stand_in import StandIn


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def test_every_request_is_sent_and_timed(stand_in: StandIn) -> None:
    results = asyncio.run(run(LoadConfig(url=stand_in.url, rate=200.0, requests=15, max_tokens=9)))
    assert len(results) == len(stand_in.asked) == 15
    assert {body["max_tokens"] for body in stand_in.asked} == {9}
    for result in results:
        assert result.error == "" and result.timings is not None
        assert result.timings.output_tokens == 7 and 0 < result.timings.ttft_ms <= result.timings.e2e_ms


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("refuse", "status 400: the prompt is <too> long"),
        ("fail inside", "a worker was lost"),
        ("break off", "broke off"),
    ],
)
def test_a_failure_is_an_error_not_a_figure(
    stand_in: StandIn, question: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "TWENTY_PROMPTS", (ExamplePrompt(question, 5),))
    (result,) = asyncio.run(run(LoadConfig(url=stand_in.url, requests=1)))
    assert result.timings is None and error in result.error


def test_what_is_not_answered_in_time_is_cut_off_and_counted(stand_in: StandIn) -> None:
    config = LoadConfig(url=stand_in.url, rate=200.0, requests=2, prompt_tokens=3, max_tokens=5, vocabulary=1)
    results = asyncio.run(run(config, linger=0.0))
    assert [result.error for result in results] == ["no answer in time"] * 2


def test_token_ids_need_a_length_of_the_answer(stand_in: StandIn) -> None:
    with pytest.raises(ConfigError, match="--max-tokens: 0"):
        asyncio.run(run(LoadConfig(url=stand_in.url, prompt_tokens=3)))


def test_arrivals_are_poisson_and_repeatable() -> None:
    times = list(arrivals(4.0, 4000, random.Random(1)))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert times[0] == 0.0 and mean == pytest.approx(0.25, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)  # of an exponential distribution
    assert times == list(arrivals(4.0, 4000, random.Random(1)))


def test_report() -> None:
    results = [
        Result(Timings(100.0, 500.0, 41), "", 1.0),
        Result(Timings(3000.0, 3400.0, 41), "", 2.0),
        Result(None, "status 500", 4.0),
    ]
    lines = list(report(results, SLO(2000.0, 100.0)))
    assert lines[1].split() == ["TTFT", "100.0", "3000.0", "3000.0"]
    assert lines[2].split() == ["TPOT", "10.0", "10.0", "10.0"]
    assert lines[4].startswith("goodput 0.25 requests/s: 1 of 3 met")
    assert lines[5] == "output  20.5 tokens/s, 82 tokens in 4.0 s"
    assert lines[6:] == ["errors  1", "        1 x status 500"]
