"""An objective is read as people write it, in full or in part, and what it leaves open is open."""

import math

import pytest

from contracts.errors import ConfigError
from contracts.slo import NO_OBJECTIVE, SLO, Objective, parse_objective


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("", NO_OBJECTIVE),
        ("ttft=2s,tpot=100ms", Objective(2000, 100)),
        (" tpot=0.5s , ttft=150ms ", Objective(150, 500)),
        ("ttft=1.5s", Objective(1500, None)),
        ("tpot=1ms", Objective(None, 1)),
        ("ttft=3600s", Objective(3_600_000, None)),
    ],
)
def test_an_objective_is_read(text: str, objective: Objective) -> None:
    assert parse_objective(text) == objective


@pytest.mark.parametrize(
    "text",
    ["ttft", "ttft=2", "ttft=2m", "ttft=-2s", "ttft=0s", "ttft=0.5ms", "ttft=3601s", "ttft=1s,ttft=2s", "e2e=1s", ","],
)
def test_what_is_none_is_refused_by_name_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--slo: .*expected ttft=2s,tpot=100ms") as refused:
        parse_objective(text)
    assert repr(text) in str(refused.value)


def test_an_objective_goes_over_another_part_by_part() -> None:
    key = Objective(2000, 100)
    assert Objective(500).over(key) == Objective(500, 100)
    assert NO_OBJECTIVE.over(key) == key == key.over(Objective(1, 1))
    assert NO_OBJECTIVE.over(Objective(None, 7)) == Objective(None, 7)


def test_a_request_that_wants_something_is_good_by_that_alone() -> None:
    usual = SLO(2000, 100)
    assert NO_OBJECTIVE.limits(usual) == usual
    assert Objective(500).limits(usual) == SLO(500, math.inf)
    assert Objective(None, 50).limits(usual) == SLO(math.inf, 50)


def test_a_request_is_good_within_both_limits() -> None:
    slo = SLO(2000, 100)
    assert slo.met(2000, 100) and not slo.met(2001, 100) and not slo.met(2000, 101)
