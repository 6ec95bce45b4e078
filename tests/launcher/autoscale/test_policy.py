"""Whatever is seen, the policy keeps to its bounds and cool-downs, settles under a steady load, and is monotone."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from contracts.slo import SLO
from launcher.autoscale.policy import MAX_FIGURE_AGE_S, ScalingChange, ScalingInput, ScalingPolicy, cheapest
from launcher.autoscale.rules import Bounds, Rules
from pricing.scaling.standing import Standing, WorkerStanding
from tests.launcher.autoscale.loads import Offered, seen

RULES = Rules({"prefill": Bounds(1, 4), "decode": Bounds(1, 6)}, SLO(1000.0, 50.0), up=30.0, down=120.0)
LOOK_PERIOD_S = 5.0  # s
SETTINGS = settings(max_examples=60)
loads = st.builds(
    Offered, st.floats(0, 6), st.one_of(st.just(0.0), st.floats(0, 20)), st.one_of(st.just(0.0), st.floats(0, 9000))
)


class Fleet:
    """Carries changes out at once, and remembers them."""

    def __init__(self, prefill: int = 1, decode: int = 1, rules: Rules = RULES) -> None:
        self.workers = {"prefill": prefill, "decode": decode}
        self.policy = ScalingPolicy(rules, 0.0)
        self.now = 0.0
        self.changes: list[tuple[float, ScalingChange]] = []

    def look(self, load: Offered) -> ScalingChange | None:
        self.now += LOOK_PERIOD_S
        change = self.policy.look(ScalingInput(seen(load, **self.workers), 0.0, self.workers), self.now)
        if change is not None:
            self.changes.append((self.now, change))
            self.workers[change.role] += change.by
        return change


def after(load: Offered, seconds: float, prefill: int = 1, decode: int = 1) -> Fleet:
    fleet = Fleet(prefill, decode)
    while fleet.now < seconds:
        fleet.look(load)
    return fleet


@SETTINGS
@given(st.lists(st.tuples(loads, st.integers(1, 60)), max_size=20))
def test_bounds_hold_and_no_two_changes_come_within_a_cool_down(phases: list[tuple[Offered, int]]) -> None:
    fleet = Fleet()
    for load, looks in phases:
        for _ in range(looks):
            fleet.look(load)
            for role, bounds in RULES.bounds.items():
                assert bounds.least <= fleet.workers[role] <= bounds.most
    last = 0.0
    for at, change in fleet.changes:
        assert at - last >= (RULES.up if change.by > 0 else RULES.down)
        last = at


@SETTINGS
@given(loads, st.integers(1, 4), st.integers(1, 6))
def test_under_a_steady_load_each_role_moves_one_way_and_stops(load: Offered, prefill: int, decode: int) -> None:
    fleet = after(load, 2000.0, prefill=prefill, decode=decode)
    for role, bounds in RULES.bounds.items():
        ways = [change.by for _, change in fleet.changes if change.role == role]
        assert len(set(ways)) <= 1 and len(ways) < bounds.most
    count = len(fleet.changes)
    for _ in range(200):
        fleet.look(load)
    assert len(fleet.changes) == count


def first(load: Offered, workers: dict[str, int]) -> int:
    """Returns which way the first change goes that a steady load makes; 0 for none."""
    policy, standing = ScalingPolicy(RULES, 0.0), seen(load, **workers)
    looks = (policy.look(ScalingInput(standing, 0.0, workers), LOOK_PERIOD_S * number) for number in range(1, 40))
    return next((change.by for change in looks if change is not None), 0)


@SETTINGS
@given(loads, loads, st.integers(1, 4), st.integers(1, 6))
def test_more_load_never_removes_a_worker_that_less_load_keeps(
    one: Offered, other: Offered, prefill: int, decode: int
) -> None:
    less, more = Offered(*map(min, one, other)), Offered(*map(max, one, other))
    workers = {"prefill": prefill, "decode": decode}
    assert first(less, workers) <= first(more, workers)


def test_a_pressed_role_grows_within_its_cool_down_and_an_idle_one_shrinks_in_its_own_time() -> None:
    assert after(Offered(work=1.0), 36.0).workers == {"prefill": 2, "decode": 1}
    assert after(Offered(tokens=1500.0), 36.0).workers == {"prefill": 1, "decode": 2}
    assert after(Offered(), 120.0, decode=2).changes == []
    assert after(Offered(), 126.0, decode=2).workers == {"prefill": 1, "decode": 1}


def test_one_worker_fewer_would_be_too_few_so_nobody_goes() -> None:
    """Each of two does half of what it may: a fixed share of the objective would let one go, and take it back."""
    assert after(Offered(work=0.9), 4000.0, prefill=2).changes == []


def broken(standing: Standing, how: str) -> ScalingInput:
    wanted = {"prefill": 2, "decode": 2}
    first, *others = standing.decode.workers
    lacking = {
        "old": structs.replace(first, age=MAX_FIGURE_AGE_S + 1),
        "draining": structs.replace(first, draining=True),
        "late": structs.replace(first, usable=False),
        "unknown": structs.replace(first, ttft=None, ttft_alone=None, tpot=None, tpot_alone=None),
    }
    if how in lacking:
        decode = structs.replace(standing.decode, workers=(lacking[how], *others))
        return ScalingInput(structs.replace(standing, decode=decode), 0.0, wanted)
    return {
        "none": ScalingInput(None, 0.0, wanted),
        "all old": ScalingInput(standing, MAX_FIGURE_AGE_S + 1, wanted),
        "starting": ScalingInput(standing, 0.0, {"prefill": 3, "decode": 2}),
        "unwanted": ScalingInput(standing, 0.0, {"prefill": 2, "decode": 1}),
        "empty": ScalingInput(Standing(), 0.0, wanted),
    }[how]


HOWS = ["old", "draining", "late", "unknown", "none", "all old", "starting", "unwanted", "empty"]


@SETTINGS
@given(loads, st.sampled_from(HOWS))
def test_figures_that_are_old_or_missing_change_nothing(load: Offered, how: str) -> None:
    policy = ScalingPolicy(RULES, 0.0)
    for number in range(1, 200):
        assert policy.look(broken(seen(load, 2, 2), how), LOOK_PERIOD_S * number) is None


@given(st.sampled_from(HOWS))
def test_one_look_without_figures_begins_every_wait_anew(how: str) -> None:
    fleet = Fleet(2, 2)
    for number in range(1, 200):
        if number % 20 == 0:  # every 100 s, of the 120 that a removal takes
            fleet.now += LOOK_PERIOD_S
            assert fleet.policy.look(broken(seen(Offered(), 2, 2), how), fleet.now) is None
        else:
            fleet.look(Offered())
    assert fleet.changes == []


def test_where_predictions_are_wrong_removals_become_rare() -> None:
    """One worker is always said to suffice, and when it is alone it is pressed: a day has few changes all the same."""
    fleet = Fleet(1, 2)
    while fleet.now < 86400.0:
        fleet.look(Offered(tokens=2000.0 if fleet.workers["decode"] == 1 else 100.0))
    every = [change.by for _, change in fleet.changes]
    assert every == [(-1) ** (number + 1) for number in range(len(every))]
    assert 4 <= len(every) < 70  # 2 in 150 s without patience: more than 1,000
    hour = [at for at, _ in fleet.changes if at > 80000]
    assert len(hour) <= 8


def test_who_costs_least_drains() -> None:
    workers = [
        WorkerStanding("busy", sequences=3, found_tokens=0),
        WorkerStanding("a known one", sequences=1, found_tokens=900),
        WorkerStanding("cheap", sequences=1, found_tokens=10),
        WorkerStanding("queued", sequences=1, queued_tokens=50, found_tokens=0),
    ]
    assert cheapest(workers) == "cheap"
    fleet = after(Offered(tokens=100.0), 400.0, decode=3)
    assert [change.worker for _, change in fleet.changes] == ["d0", "d0"]


def test_a_deployment_outside_its_bounds_is_brought_into_them() -> None:
    assert after(Offered(tokens=4000.0), 1000.0, decode=9).workers["decode"] <= 6
    wide = structs.replace(RULES, bounds={"decode": Bounds(3, 6)})
    fleet = Fleet(rules=wide)
    while fleet.now < 200.0:
        fleet.look(Offered())
    assert fleet.workers == {"prefill": 1, "decode": 3}


def test_a_role_without_bounds_is_left_alone() -> None:
    fleet = Fleet(2, 2, structs.replace(RULES, bounds={"decode": Bounds(1, 6)}))
    for _ in range(1000):
        fleet.look(Offered(work=50.0, queued=50.0))
    assert fleet.workers["prefill"] == 2


def test_an_objective_that_one_request_alone_misses_takes_no_workers() -> None:
    strict = Fleet(rules=structs.replace(RULES, slo=SLO(10.0, 1.0)))
    for _ in range(1000):
        strict.look(Offered(work=0.1, tokens=10.0))
    assert strict.changes == [] and strict.now < inf
