"""`--autoscale` is read, or refused with a sentence that names it and its value."""

import pytest

from contracts.errors import ConfigError
from contracts.slo import SLO
from launcher.autoscale.rules import Bounds, parse_rules

USUAL = SLO(2000.0, 100.0)


def test_bounds_and_waits_are_read() -> None:
    rules = parse_rules("prefill=1:4, decode=2:8, up=5s, down=20.5s", USUAL)
    assert rules.bounds == {"prefill": Bounds(1, 4), "decode": Bounds(2, 8)}
    assert (rules.up, rules.down, rules.slo) == (5.0, 20.5, USUAL)
    assert parse_rules("decode=3:3", USUAL).bounds == {"decode": Bounds(3, 3)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "decode=0:2",
        "decode=3:2",
        "decode=1:2000",
        "decode=1",
        "decode=1:2,decode=1:3",
        "gateway=1:2",
        "decode=1:2,up=5",
        "decode=1:2,up=60s,down=30s",
        "decode=1:2,up=0s",
        "up=5s,down=6s",
    ],
)
def test_what_cannot_work_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--autoscale") as caught:
        parse_rules(text, USUAL)
    assert text in str(caught.value) and "prefill=1:4,decode=1:8" in str(caught.value)
