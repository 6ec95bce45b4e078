"""Launch and collect: what a step answers, what it signals, and what one sequence may do to another."""

import math
from pathlib import Path

import pytest
from msgspec import structs

from contracts.errors import ConfigError
from contracts.messages.sampling import MIN_TEMPERATURE, Sampling
from engine.executor import Executor
from engine.plan import PENDING_TOKEN, BlockMove, StepPlan, Work
from tests.engine.drive import GREEDY, run, start
from tests.engine.test_golden import make_engine, make_executor
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("executor") / "model", VARIANTS["llama"]())


def test_only_works_with_sampling_answer(model: Path) -> None:
    executor = make_executor(model)
    works = [
        Work(1, 0, [1, 2, 3], ([1],)),
        Work(2, 0, [4], ([2],), GREEDY),
        Work(3, 0, [5, 6], ([3],), Sampling(seed=3), (0,), 0),
    ]
    executor.launch(StepPlan(7, works))
    result = executor.collect()
    assert result.step == 7 and result.failed == []
    assert [len(tokens) for tokens in result.tokens] == [0, 1, 1]
    executor.launch(StepPlan(8, works[:1]))
    assert executor.collect().tokens == [[]]


def test_samples_draw_from_one_row_what_each_draws_alone(model: Path) -> None:
    """The row is computed once; who drew one sample beside them may go on with a pending token."""
    executor = make_executor(model)
    prompts = make_prompts([20, 9], 320)
    flat = Sampling(seed=5, temperature=3.0)
    alone = []
    for number in (0, 3, 1):
        executor.launch(StepPlan(0, [Work(1, 0, prompts[0], ([1, 2],), flat, (number,), 4)]))
        alone += executor.collect().tokens[0]
    assert len(set(alone)) == 3
    second = Work(2, 0, prompts[1], ([3],), flat, (0,))
    executor.launch(StepPlan(1, [second]))
    executor.launch(StepPlan(2, [Work(2, 9, [PENDING_TOKEN], ([3],), GREEDY, (0,), 1)]))
    expected = [executor.collect().tokens[0], executor.collect().tokens[0]]
    executor.launch(StepPlan(3, [Work(1, 0, prompts[0], ([1, 2],), flat, (0, 3, 1), 4), second]))
    executor.launch(StepPlan(4, [Work(2, 9, [PENDING_TOKEN], ([3],), GREEDY, (0,), 1)]))
    assert executor.collect().tokens == [alone, expected[0]]
    assert executor.collect().tokens == [expected[1]]


def test_every_layer_signals_once_its_kv_is_there(model: Path) -> None:
    """The bytes of a layer are final when its signal comes: what is read then is what is there at the end."""
    seen: list[tuple[int, int, int, bytes]] = []

    def on_layer(plan: StepPlan, group: int, layer: int) -> None:
        seen.append((plan.step, group, layer, b"".join(executor.engine.pool.read(group, layer, [1, 2]))))

    executor = Executor(make_engine(model), on_layer)
    executor.launch(StepPlan(5, [Work(1, 0, list(range(30)), ([1, 2],), GREEDY)]))
    executor.collect()
    assert [entry[:3] for entry in seen] == [(5, 0, layer) for layer in range(4)]
    assert [entry[3] for entry in seen] == [b"".join(executor.engine.pool.read(0, layer, [1, 2])) for layer in range(4)]
    assert all(any(entry[3]) for entry in seen)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_moved_block_serves_as_its_original_does(device: str, in_file: bool, model: Path, tmp_path: Path) -> None:
    """Copied, or away in the host tier while others use its place."""
    directory = str(tmp_path) if in_file else ""
    engine = make_engine(model, device=device, host_kv_memory=4 << 20, host_kv_directory=directory)
    assert engine.host_slots == (4 << 20) // engine.pool.spec.block_bytes()
    executor = Executor(engine)
    prompt = make_prompts([20], 320)[0]
    executor.launch(StepPlan(0, [Work(1, 0, prompt, ([1, 2],), GREEDY)]))
    token = executor.collect().tokens[0]
    executor.launch(StepPlan(1, [Work(1, 20, token, ([1, 2],), GREEDY)]))
    expected = executor.collect().tokens
    executor.move([BlockMove("copy", 0, 2, 9)])
    executor.launch(StepPlan(2, [Work(2, 20, token, ([1, 9],), GREEDY)]))
    assert executor.collect().tokens == expected
    last = engine.host_slots - 1
    executor.move([BlockMove("out", 0, 1, last), BlockMove("out", 0, 9, 3)])
    executor.launch(StepPlan(3, [Work(3, 0, make_prompts([40], 320)[0], ([1, 9, 2],), GREEDY)]))
    executor.collect()
    executor.move([BlockMove("in", 0, 3, 5), BlockMove("in", 0, last, 4)])
    executor.launch(StepPlan(4, [Work(2, 20, token, ([4, 5],), GREEDY)]))
    assert executor.collect().tokens == expected
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_takes_the_next_step_when_the_one_before_is_collected(model: Path) -> None:
    """There a step is over when it is launched."""
    executor = Executor(make_engine(model))
    assert executor.engine.launch_depth == 1
    plan = StepPlan(0, [Work(1, 0, [1, 2, 3], ([1],), GREEDY)])
    executor.launch(plan)
    with pytest.raises(AssertionError, match="collect before launching another step"):
        executor.launch(plan)


def test_a_pending_token_is_the_one_of_the_step_before(model: Path) -> None:
    """Also when the order of the sequences changes between the steps."""
    executor = make_executor(model)
    prompts = make_prompts([10, 12], 320)
    first = [Work(1, 0, prompts[0], ([1],), GREEDY), Work(2, 0, prompts[1], ([2],), GREEDY)]
    executor.launch(StepPlan(0, first))
    tokens = executor.collect().tokens
    known = [Work(1, 10, tokens[0], ([1],), GREEDY), Work(2, 12, tokens[1], ([2],), GREEDY)]
    executor.launch(StepPlan(1, known))
    expected = executor.collect().tokens
    executor.launch(StepPlan(2, first))
    pending = [Work(2, 12, [PENDING_TOKEN], ([2],), GREEDY), Work(1, 10, [PENDING_TOKEN], ([1],), GREEDY)]
    executor.launch(StepPlan(3, pending))
    assert executor.collect().tokens == tokens
    assert executor.collect().tokens == expected[::-1]


def test_nan_in_one_sequence_is_reported_and_stays_there(model: Path) -> None:
    """Nor does it reach who gets the block next, whose own tokens do not yet fill it."""
    executor = make_executor(model)
    prompts = make_prompts([20, 20], 320)
    works = [Work(1, 20, [3], ([1, 2],), GREEDY), Work(2, 20, [3], ([3, 4],), GREEDY)]
    executor.launch(StepPlan(0, [Work(n + 1, 0, prompts[n], ([2 * n + 1, 2 * n + 2],)) for n in range(2)]))
    executor.collect()
    executor.launch(StepPlan(1, works))
    clean = executor.collect()
    for layer in executor.engine.pool.layers:
        layer[1:3] = math.nan
    executor.launch(StepPlan(2, works))
    result = executor.collect()
    assert result.failed == [0] and result.tokens == [[], clean.tokens[1]]
    executor.launch(StepPlan(2, [structs.replace(works[0], samples=(0, 1, 2)), works[1]]))
    assert executor.collect() == result
    answers = []
    for block in (2, 7):  # NaN in every slot; never used
        executor.launch(StepPlan(3, [Work(3, 0, prompts[0][:5], ([block],), GREEDY)]))
        executor.launch(StepPlan(4, [Work(3, 5, [PENDING_TOKEN], ([block],), GREEDY)]))
        answers.append([executor.collect(), executor.collect()])
    assert answers[0] == answers[1] and all(not answer.failed for answer in answers[0])


def test_a_work_of_which_every_token_is_forbidden_fails_alone(model: Path) -> None:
    executor = make_executor(model)
    prompt = make_prompts([20], 320)[0]
    free = Work(2, 0, prompt, ([3, 4],), Sampling(seed=3, temperature=2.0))
    executor.launch(StepPlan(0, [free]))
    clean = executor.collect()
    for temperature in (0.0, MIN_TEMPERATURE, 1e6):
        sampling = Sampling(seed=0, temperature=temperature, allowed_token_ids=(5, 7))
        stuck = Work(1, 0, prompt, ([1, 2],), sampling, (0, 1), banned=(5, 7))
        executor.launch(StepPlan(1, [stuck, free]))
        result = executor.collect()
        assert result.none_left == [0] and result.failed == []
        assert result.tokens == [[], *clean.tokens]
        executor.launch(StepPlan(2, [structs.replace(stuck, banned=(5,)), free]))
        assert executor.collect().tokens == [[7, 7], *clean.tokens]


def test_a_seeded_answer_is_the_same_in_any_batch(model: Path) -> None:
    executor = make_executor(model)
    prompts = make_prompts([5, 30, 17, 40], 320)
    samplings = [Sampling(seed=11, temperature=0.8, top_p=0.9)] * 4
    together = run(executor, start(executor, prompts, 10, samplings=samplings), 10, chunk=7)
    for prompt, expected in zip(prompts, together, strict=True):
        assert run(executor, start(executor, [prompt], 10, samplings=samplings), 10) == [expected]
    other = [Sampling(seed=12, temperature=0.8, top_p=0.9)] * 4
    assert run(executor, start(executor, prompts, 10, samplings=other), 10) != together


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_stays_close_to_full(dtype: str, model: Path) -> None:
    """Logits of random models are close to each other, so most first tokens must agree, not all."""
    prompts = make_prompts([1, *range(3, 63, 3)], 320)
    full, half = make_executor(model), make_executor(model, dtype=dtype)
    expected = run(full, start(full, prompts, 1), 1, chunk=64)
    found = run(half, start(half, prompts, 1), 1, chunk=64)
    assert sum(left == right for left, right in zip(expected, found, strict=True)) >= 0.8 * len(prompts)


def test_settings_that_do_not_fit_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--kv-memory: '1.0MiB'.*--kv-memory"):
        make_executor(model, kv_memory=1 << 20, max_model_len=1024)
    with pytest.raises(ConfigError, match="--device: 'cuda:99'"):
        make_executor(model, device="cuda:99")
