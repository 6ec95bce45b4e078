"""What a key allows, and what a request may want within it."""

from pathlib import Path

import pytest

from contracts.slo import NO_OBJECTIVE, Objective
from gateway.errors import APIError
from gateway.keys.caller import ANY_CALLER, Caller, RateLimits
from gateway.keys.callers import Callers
from infra.keys.key_ring import KeyRing
from tests.gateway.keys.conftest import KeyMaker

USUAL = Objective(3000, 200)


def test_a_key_tells_tenant_limits_and_objective(key_file: Path, make: KeyMaker) -> None:
    text = make(
        "one", tenant="acme", requests_per_minute=5, tokens_per_minute=6, concurrency=7, priority=3, slo="ttft=1s"
    )
    caller = Callers(KeyRing([str(key_file)]), USUAL).identify("/v1/models", {"x-api-key": text})
    assert caller == Caller(
        key=text.split("-")[1],
        tenant="acme",
        operator=False,
        priority=3,
        objective=Objective(1000, 200),
        granted=Objective(1000, 200),
        limits=RateLimits(5, 6, 7),
    )


@pytest.mark.parametrize(
    ("bound", "asked", "allowed"),
    [(None, None, 0), (None, -9, -9), (0, None, 0), (0, 0, 0), (0, 5, 5), (3, None, 3), (-2, None, 0), (-2, -2, -2)],
)
def test_a_priority_within_the_bound_is_kept(bound: int | None, asked: int | None, allowed: int) -> None:
    assert Caller(priority=bound).allowed(asked) == allowed


@pytest.mark.parametrize(("bound", "asked"), [(0, -1), (3, 0), (3, 2), (-2, -3)])
def test_a_priority_beyond_the_bound_is_refused_by_both_numbers(bound: int, asked: int) -> None:
    with pytest.raises(APIError) as refused:
        Caller(priority=bound).allowed(asked)
    assert (refused.value.status, refused.value.code) == (403, "priority_not_allowed")
    assert f"{asked} is lower than {bound}" in refused.value.message


@pytest.mark.parametrize(
    ("key", "headers", "objective"),
    [
        ("", {}, USUAL),
        ("", {"x-slo-ttft-ms": "1"}, Objective(1, 200)),
        ("", {"x-slo-tpot-ms": "50.5", "x-slo-ttft-ms": "3600000"}, Objective(3_600_000, 50.5)),
        ("ttft=2s", {}, Objective(2000, 200)),
        ("ttft=2s", {"x-slo-ttft-ms": "2000"}, Objective(2000, 200)),
        ("ttft=2s,tpot=100ms", {"x-slo-ttft-ms": "9000"}, Objective(9000, 100)),
        ("tpot=100ms", {"x-slo-ttft-ms": "10"}, Objective(10, 100)),
    ],
)
def test_headers_come_before_the_key_and_the_key_before_the_gateway(
    key_file: Path, make: KeyMaker, key: str, headers: dict[str, str], objective: Objective
) -> None:
    offer = {"authorization": f"Bearer {make('one', slo=key)}"}
    assert Callers(KeyRing([str(key_file)]), USUAL).identify("/", offer | headers).objective == objective
    assert Callers(None, NO_OBJECTIVE).identify("/", {}).objective is not None and not ANY_CALLER.objective


@pytest.mark.parametrize(
    ("key", "tpot", "held_back"), [("", "3", 200), ("", "300", 300), ("tpot=50ms", "60", 60), ("tpot=50ms", None, 50)]
)
def test_others_are_held_back_for_no_more_than_was_granted(
    key_file: Path, make: KeyMaker, key: str, tpot: str | None, held_back: float
) -> None:
    headers = {"authorization": f"Bearer {make('one', slo=key)}"} | ({"x-slo-tpot-ms": tpot} if tpot else {})
    assert Callers(KeyRing([str(key_file)]), USUAL).identify("/", headers).promise.tpot_ms == held_back
    assert Callers(None, NO_OBJECTIVE).identify("/", headers).promise.tpot_ms is None, "nothing was granted"


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e3", "soon", "0.5", "3600001", "٣٠", "1" * 400])
def test_an_objective_that_is_none_is_refused_by_name(value: str) -> None:
    for name in ("x-slo-ttft-ms", "x-slo-tpot-ms"):
        with pytest.raises(APIError, match=name) as refused:
            Callers(None, NO_OBJECTIVE).identify("/v1/models", {name: value})
        assert (refused.value.status, refused.value.param) == (400, name) and len(refused.value.message) < 200


def test_no_header_asks_for_more_than_the_key_may_have(key_file: Path, make: KeyMaker) -> None:
    offer = {"x-api-key": make("one", slo="ttft=2s")}
    with pytest.raises(APIError, match="1999 is less than 2000, the objective of this key"):
        Callers(KeyRing([str(key_file)]), USUAL).identify("/", offer | {"x-slo-ttft-ms": "1999"})
