"""What a start measures tells the coefficients apart that requests may not: on any attention, in any pool, in time."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from engine.executor import Executor
from engine.plan import StepPlan
from engine.start.step_contrasts import agreed, step_contrasts
from pricing.step_costs.seed import MeasuredStep, StepContrast, seeded
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import VARIANTS

TRUE = StepCosts(step=0.0105, prompt_token=0.0011, pair=4.8e-7, sequence=0.00045, context_token=3.5e-6)
"""A model of 135M parameters on a core: its attention reads KV more slowly than its weights."""
MAX_CONTRASTS_S = 3.0
AMOUNTS = {"sequence": "sequences", "context_token": "context", "pair": "pairs"}


@pytest.fixture(autouse=True)
def measured_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' engines do not measure steps."""
    monkeypatch.setattr("engine.start.step_contrasts.MAX_CONTRASTS_S", MAX_CONTRASTS_S)


class Device:
    """Computes steps, and takes the seconds that these costs say."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, costs: StepCosts, factor: Callable[[], float] = lambda: 1.0
    ) -> None:
        self.now, self.steps = 0.0, 0
        launch = Executor.launch

        def launched(executor: Executor, plan: StepPlan) -> None:
            launch(executor, plan)
            assert all(work.sequence < 0 for work in plan.works), "the engine keeps states by id, as of requests"
            self.steps += 1
            self.now += factor() * costs.seconds(work_of(plan))

        monkeypatch.setattr(Executor, "launch", launched)

    def clock(self) -> float:
        return self.now


def work_of(plan: StepPlan) -> StepWork:
    decodes = [work.start + 1 for work in plan.works if work.output_index]
    prompts = [(work.start, len(work.token_ids)) for work in plan.works if not work.output_index]
    return StepWork(
        sum(tokens for _, tokens in prompts), sum(pairs_of(*each) for each in prompts), len(decodes), sum(decodes)
    )


def told_apart(contrasts: list[StepContrast]) -> set[str]:
    """Names the coefficients; the two steps of each differ in its own amount alone."""
    for each in contrasts:
        less, more = structs.asdict(each.less.work), structs.asdict(each.more.work)
        assert {name for name in less if less[name] != more[name]} == {AMOUNTS[each.coefficient]}
        assert each.less.seconds > 0 and each.more.seconds > 0
    return {each.coefficient for each in contrasts}


@pytest.mark.parametrize("variant", ["llama", "mistral-window", "gpt-oss", "deepseek-v3"])
def test_every_coefficient_is_found_on_the_engine_that_serves(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(build_model(tmp_path / "model", VARIANTS[variant]()), max_model_len=1024, kv_memory=32 << 20)
    device = Device(monkeypatch, TRUE)
    contrasts = step_contrasts(engine, 64, 512, 1 / TRUE.prompt_token, device.clock)
    assert told_apart(contrasts) == {"sequence", "context_token", "pair"}
    prompts = [MeasuredStep(tokens, TRUE.seconds(StepWork(tokens, pairs_of(0, tokens)))) for tokens in (16, 256)]
    figures = (135_000_000, 270_000_000, 23_040, 30)  # parameters, bytes of weights and of a token's KV, layers
    derived, costs = seeded(prompts, *figures), seeded(prompts, *figures, contrasts)
    for work in (StepWork(sequences=1, context=1500), StepWork(sequences=4, context=6000)):
        assert costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.01)
    assert costs.pair == pytest.approx(TRUE.pair)
    assert derived.context_token < TRUE.context_token / 4, "bytes alone say far less than attention takes"


def test_a_small_pool_and_a_short_model_tell_what_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = build_model(tmp_path / "model", VARIANTS["llama"]())
    small = make_engine(directory, kv_memory=256 << 10, max_model_len=48)
    shortest = make_engine(directory, max_model_len=2)
    clock = Device(monkeypatch, TRUE).clock
    assert told_apart(step_contrasts(small, 64, 512, 1e4, clock)) == {"context_token", "pair"}
    assert told_apart(step_contrasts(shortest, 1, 1, 1e4, clock)) == {"context_token", "pair"}


def test_a_slow_device_measures_few_short_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(build_model(tmp_path / "model", VARIANTS["llama"]()), max_model_len=1024, kv_memory=32 << 20)
    costs = structs.replace(TRUE, step=1.0, prompt_token=0.1)
    device = Device(monkeypatch, costs)
    assert told_apart(step_contrasts(engine, 64, 512, 1 / costs.prompt_token, device.clock)) == {"context_token"}
    assert device.now < MAX_CONTRASTS_S + 6 * 1.2, "two steps of a pair run three times each"


def test_cores_that_others_take_leave_no_wrong_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of eight decodes beside a lone one is longer by 3 ms, while neighbours make steps 2 to 5 x as long."""
    engine = make_engine(build_model(tmp_path / "model", VARIANTS["llama"]()), max_model_len=1024, kv_memory=32 << 20)
    chance = Random(1)
    busy = Device(monkeypatch, TRUE, lambda: chance.uniform(2, 5))
    contrasts = step_contrasts(engine, 64, 512, 1 / TRUE.prompt_token, busy.clock)
    assert "sequence" not in told_apart(contrasts)
    assert not seeded(
        [MeasuredStep(16, 0.03), MeasuredStep(256, 0.3)], 135_000_000, 270_000_000, 23_040, 30, contrasts
    ).told_apart


def test_what_costs_nothing_is_measured_too() -> None:
    """A batch of eight may take as long as a lone sequence: the ratios of the other costs are known all the same."""
    assert agreed([0.0100, 0.0101, 0.0099, 0.0100], [0.0100, 0.0099, 0.0102, 0.0100]) == pytest.approx(0, abs=1e-4)
    assert agreed([0.010, 0.020, 0.012, 0.040], [0.013, 0.011, 0.030, 0.016]) is None
