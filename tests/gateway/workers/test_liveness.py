"""Suspicion and death of a worker: pure, with time as an argument."""

import pytest

from gateway.workers.liveness import (
    DEAD_AFTER_S,
    HANGS_AFTER_MS,
    MAX_LOOK_INTERVAL_S,
    PING_INTERVAL_S,
    PING_REPEAT_S,
    RECONNECT_WITHIN_S,
    SUSPECT_AFTER_S,
    Liveness,
)

STEP_S = 0.05


def run(liveness: Liveness, start: float, seconds: float, answer: bool) -> tuple[float, list[float]]:
    """Looks every 50 ms; returns the time after it and when pings left."""
    pings = []
    for count in range(round(seconds / STEP_S)):
        now = start + count * STEP_S
        if liveness.look(now) is not None:
            pings.append(now)
            if answer:
                liveness.heard(now + 0.001)
                liveness.pong(0.0)
    return start + seconds, pings


def health(liveness: Liveness) -> str:
    return liveness.health.name


def takes_work(liveness: Liveness) -> bool:
    return liveness.takes_work


def alive() -> Liveness:
    liveness = Liveness(0.0)
    liveness.heard(0.0)
    return liveness


def test_one_that_answers_stays_alive_and_is_pinged_rarely() -> None:
    liveness = alive()
    _, pings = run(liveness, 0.0, 10.0, answer=True)
    assert health(liveness) == "ALIVE"
    assert len(pings) == pytest.approx(10.0 / PING_INTERVAL_S, abs=3)


def test_silence_is_suspicion_then_death() -> None:
    liveness = alive()
    now, _ = run(liveness, 0.0, PING_INTERVAL_S + SUSPECT_AFTER_S + 3 * STEP_S, answer=False)
    assert health(liveness) == "SUSPECT"
    rest = DEAD_AFTER_S - SUSPECT_AFTER_S
    _, pings = run(liveness, now, rest, answer=False)
    assert health(liveness) == "DEAD"
    assert len(pings) >= 0.6 * rest / PING_REPEAT_S, "suspects are pinged more often"


def test_who_is_only_silent_still_takes_work() -> None:
    """A busy machine makes it so for a moment; requests elsewhere find nobody, or a longer way."""
    liveness = alive()
    now, _ = run(liveness, 0.0, PING_INTERVAL_S + SUSPECT_AFTER_S + 3 * STEP_S, answer=False)
    assert health(liveness) == "SUSPECT" and takes_work(liveness)
    liveness.beating = False
    assert not takes_work(liveness)
    liveness.beating = True
    liveness.disconnected(now)
    assert not takes_work(liveness)


def test_the_dead_take_no_work() -> None:
    liveness = alive()
    run(liveness, 0.0, 2.0, answer=False)
    assert health(liveness) == "DEAD" and not takes_work(liveness)


def test_who_stops_is_dead_within_a_second_and_a_half() -> None:
    liveness = alive()
    _, pings = run(liveness, 0.0, 3.0, answer=True)
    run(liveness, pings[-1] + STEP_S, 1.5, answer=False)
    assert health(liveness) == "DEAD"


def test_an_answer_ends_suspicion() -> None:
    liveness = alive()
    now, _ = run(liveness, 0.0, PING_INTERVAL_S + SUSPECT_AFTER_S + 3 * STEP_S, answer=False)
    liveness.heard(now)
    run(liveness, now, 5.0, answer=True)
    assert health(liveness) == "ALIVE"


def test_a_missing_heartbeat_is_only_suspicion() -> None:
    liveness = alive()
    liveness.beating = False
    now, _ = run(liveness, 0.0, 5.0, answer=True)
    assert health(liveness) == "SUSPECT"
    liveness.beating = True
    run(liveness, now, 0.5, answer=True)
    assert health(liveness) == "ALIVE"


def test_a_missing_heartbeat_and_a_second_of_silence_are_death() -> None:
    liveness = alive()
    liveness.beating = False
    run(liveness, 0.0, PING_REPEAT_S + DEAD_AFTER_S + 3 * STEP_S, answer=False)
    assert health(liveness) == "DEAD"


def test_a_pause_of_this_process_is_nobodys_death() -> None:
    liveness = alive()
    now, _ = run(liveness, 0.0, PING_INTERVAL_S + 2 * STEP_S, answer=False)
    liveness.look(now + 30.0)
    assert health(liveness) != "DEAD"
    liveness.heard(now + 30.01)
    liveness.look(now + 30.05)
    assert health(liveness) == "ALIVE"


def test_a_gateway_that_looks_seldom_sees_the_dead_all_the_same() -> None:
    liveness = alive()
    for count in range(30):
        liveness.look(count * 2.5 * MAX_LOOK_INTERVAL_S)
    assert health(liveness) == "DEAD"


def test_a_worker_that_was_never_reached_is_dead_only_without_a_heartbeat() -> None:
    liveness = Liveness(0.0)
    now, _ = run(liveness, 0.0, 10.0, answer=False)
    assert health(liveness) == "CONNECTING"
    liveness.beating = False
    run(liveness, now, 2.0, answer=False)
    assert health(liveness) == "DEAD"


def test_a_step_that_is_far_overdue_is_death() -> None:
    liveness = alive()
    liveness.pong(-HANGS_AFTER_MS / 2)
    assert health(liveness) == "ALIVE"
    liveness.pong(-HANGS_AFTER_MS - 1)
    assert health(liveness) == "DEAD"
    liveness.heard(1.0)
    assert health(liveness) == "DEAD"


def test_a_connection_that_ended_and_is_not_there_again_is_death_soon() -> None:
    liveness = alive()
    liveness.disconnected(0.0)
    assert health(liveness) == "SUSPECT"
    liveness.heard(0.1)  # it was sent before
    assert health(liveness) == "SUSPECT"
    _, pings = run(liveness, 0.1, RECONNECT_WITHIN_S + STEP_S, answer=False)
    assert health(liveness) == "DEAD" and len(pings) >= 5, "it was greeted all the while"


def test_a_connection_that_is_there_again_is_alive() -> None:
    liveness = alive()
    liveness.disconnected(0.0)
    now, _ = run(liveness, 0.0, RECONNECT_WITHIN_S - 2 * STEP_S, answer=False)
    liveness.greeted()
    liveness.heard(now)
    run(liveness, now, 5.0, answer=True)
    assert health(liveness) == "ALIVE"


def test_a_pause_of_this_process_cuts_nobody_off() -> None:
    liveness = alive()
    liveness.disconnected(0.0)
    liveness.look(30.0)
    assert health(liveness) == "SUSPECT"
