"""Shows what a prompt is expected to wait behind those that have no first token yet, by what was seen."""

import pytest

from gateway.requests.pace import Pace


def test_the_wait_is_what_is_awaited_over_how_fast_it_came() -> None:
    pace, now = Pace(), 100.0
    for number in range(40):
        pace.begins(f"r-{number}", 200, now)
    assert pace.wait(200, now) == 0.0, "nothing is known yet"
    for number in range(30):
        now += 0.1  # 2,000 tokens/s
        pace.ends(f"r-{number}", now, came=True)
    assert pace.wait(200, now) == pytest.approx(11 * 0.1, rel=0.1)


def test_where_nothing_comes_any_more_the_wait_grows() -> None:
    pace, now = Pace(), 0.0
    for number in range(20):
        pace.begins(f"r-{number}", 100, now)
    for number in range(10):
        now += 0.1
        pace.ends(f"r-{number}", now, came=True)
    before = pace.wait(100, now)
    assert pace.wait(100, now + 2.0) > 3 * before


def test_who_is_given_up_is_not_awaited_and_nobody_awaited_is_no_wait() -> None:
    pace = Pace()
    pace.begins("r-1", 1000, 0.0)
    pace.begins("r-2", 100, 0.0)
    pace.ends("r-2", 1.0, came=True)
    assert pace.wait(100, 1.0) > 5.0
    pace.ends("r-1", 1.0)
    assert pace.wait(100, 1.0) == 0.0
