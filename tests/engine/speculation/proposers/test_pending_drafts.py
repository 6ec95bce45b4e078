"""Draft tokens are verified before the host has seen them, on a simulated GPU and with steps launched ahead."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.messages.sampling import Sampling
from engine.backends.base import StepSizes
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.executor import Executor
from engine.kv.pool import KVPool
from engine.model.batch import Sampled
from engine.plan import PENDING_DRAFT, PENDING_TOKEN, Proposal, StepPlan, Work
from engine.speculation.proposers.draft import RECORDED_TOKENS, DraftModel, DraftProposer, own_blocks
from engine.speculation.proposers.eagle import EagleProposer
from engine.speculation.proposers.pending_drafts import DeviceDrafts, DraftedTokens, PendingDrafts, before_drafts
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY, run, start
from tests.engine.simulated_device import CUDA
from tests.engine.simulated_torch import simulated_device
from tests.engine.speculation.heads import build_head
from tests.engine.speculation.serving import Asked, Serving
from tests.engine.test_golden import make_engine
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

pytestmark = pytest.mark.interpreted
BLOCKS, GUESSES, NEW = 8, 3, 6
RANDOM = Sampling(seed=5, temperature=1.1)
PENALIZED = Sampling(seed=9, temperature=1.2, repetition_penalty=1.3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pending")
    config = VARIANTS["llama"]()
    config.num_hidden_layers = 2
    build_head(directory / "head", VARIANTS["llama"]())
    return build_model(directory / "model", config)


def loaded(model: Path, backend: str = "triton", graphs: str = "off") -> LoadedEngine:
    sizes = {"block_size": 8, "max_sequences": 2, "max_batch_tokens": 16, "decode_graphs": graphs}
    return make_engine(model, speculation="eagle", eagle=str(model.parent / "head"), cpu_backend=backend, **sizes)


def with_draft(engine: Engine, original: LoadedEngine) -> tuple[Engine, DraftProposer]:
    """The model is its own draft: it foresees all."""
    backend, config, spec = engine.backend, engine.model_config, engine.pool.spec
    pool = KVPool(spec, [BLOCKS + own_blocks(GUESSES, 8)], CUDA, backend.mover, backend.codec)
    sizes = StepSizes(2, RECORDED_TOKENS - 1, in_flight=2 * GUESSES)
    steps = backend.decode_steps(engine.model, config, pool.layers, sizes, lambda stage, percent: None)
    attention = backend.attention(config, pool.layers)
    draft = DraftModel(backend, engine.model, config, pool, attention, 0, BLOCKS, steps)
    return engine, DraftProposer(draft, config.vocab_size, GUESSES, chunk=16)


def with_head(engine: Engine, original: LoadedEngine) -> tuple[Engine, EagleProposer]:
    assert isinstance(original.follower, EagleProposer)
    head = EagleProposer(original.follower._head, engine.backend, engine.pool, engine.attention, 2)
    return replace(engine, follower=head), head


@pytest.mark.parametrize(("make", "tokens_of_step"), [(with_draft, {1, 1 + GUESSES}), (with_head, set())])
def test_the_host_waits_for_no_draft_token(
    make: Callable[[Engine, LoadedEngine], tuple[Engine, DraftProposer | EagleProposer]],
    tokens_of_step: set[int],
    model: Path,
) -> None:
    """It waits once for a step, once for the draft tokens that the step has verified, and nothing races."""
    original = loaded(model)
    (prompt,) = make_prompts([9], 320)
    plain = Executor(make_engine(model))
    (coming,) = run(plain, start(plain, [prompt], 2 * NEW), 2 * NEW)
    found: list[int] = []
    sizes: set[int] = set()
    with simulated_device() as device:
        backend = TritonBackend(CUDA, torch.float32)
        spec, config = original.pool.spec, original.model_config
        pool = KVPool(spec, [BLOCKS], CUDA, backend.mover, backend.codec)
        step_sizes = StepSizes(2, GUESSES)
        steps = backend.decode_steps(original.model, config, pool.layers, step_sizes, lambda stage, percent: None)
        attention = backend.attention(config, pool.layers)
        bare = Engine(backend, original.model, config, pool, attention, backend.launch_depth, steps, None)
        engine, proposer = make(bare, original)
        executor = Executor(engine, proposer=proposer)
        text, proposed = list(prompt), tuple[int, ...]()
        for step in range(NEW // 2):
            begin = len(text) - 1 if step else 0
            ids = [*text[begin:], *proposed]
            work = Work(1, begin, ids, ([1, 2, 3],), GREEDY, (0,), len(found), text, 9, proposed=proposed, propose=3)
            waits = device.waits
            executor.launch(StepPlan(step, [work]))
            assert device.waits == waits, "the host waits for the device"
            result = executor.collect()
            assert device.waits - waits == (2 if step else 1)
            text += result.tokens[0]
            found += result.tokens[0]
            sizes.add(len(result.tokens[0]))
            assert result.proposed[0] == Proposal([PENDING_DRAFT] * GUESSES)
            proposed = (PENDING_DRAFT,) * GUESSES
    assert found == coming[: len(found)] and sizes >= tokens_of_step
    assert device.races == []


@pytest.mark.parametrize(("backend", "graphs"), [("native", "off"), ("triton", "on")])
def test_an_eagle_head_s_pending_drafts_change_no_token(backend: str, graphs: str, model: Path) -> None:
    """A text with penalties has its draft tokens read at once: its draws look at them."""
    engine = replace(loaded(model, backend, graphs), launch_depth=2)
    prompts = make_prompts([14, 3], 320)
    for samplings in ((GREEDY, RANDOM), (GREEDY, PENALIZED)):
        texts = [Asked(text, NEW, sampling) for text, sampling in zip(prompts, samplings, strict=True)]
        serving = Serving(engine, engine.follower, GUESSES, batch=16)
        assert serving.run(texts) == Serving(make_engine(model), None, 0).run(texts)
        assert (serving.guesses.pending < serving.guesses.tokens) == (PENALIZED in samplings)
        assert serving.guesses.pending > 0


def test_forgotten_draft_tokens_are_replaced() -> None:
    """A sequence that has waited for many steps comes back with draft tokens that the executor has forgotten."""
    pending = PendingDrafts()
    drafts = DeviceDrafts(torch.tensor([7, 8, 9]))
    works = [Work(number, 4, [5, -2], ([1],), GREEDY, proposed=(PENDING_DRAFT,)) for number in range(400)]
    for work in works:
        assert pending.proposal(work, DraftedTokens(drafts, [1, 2])).tokens == [PENDING_DRAFT] * 2
    plan, found = pending.of(StepPlan(0, works[399:]))
    assert plan.works == works[399:] and list(found[399]) == [8, 9]
    plan, found = pending.of(StepPlan(1, [works[0], works[398]]))
    assert plan.works[0].proposed == (0,) and plan.works[0].token_ids == [5, 0]
    assert plan.works[1] is works[398] and found.keys() == {398}


def test_a_step_takes_draft_tokens_of_several_proposals_and_a_pending_token() -> None:
    older, newer = DeviceDrafts(torch.tensor([7, 8, 9])), DeviceDrafts(torch.tensor([4, 5]))
    drafted = {1: DraftedTokens(older, [0, 2]), 2: DraftedTokens(newer, [1]), 3: DraftedTokens(older, [1])}
    works = [Work(number, 4, [6, -2], ([1],), GREEDY, proposed=(PENDING_DRAFT,)) for number in (1, 2, 3)]
    before = Sampled(torch.tensor([30, 31]), [Work(0, 3, [6], ([1],), GREEDY)])
    for others in ([], [Work(0, 4, [PENDING_TOKEN], ([1],), GREEDY)]):
        found = before_drafts(before, [*works, *others], drafted)
        assert found is not None and len(found.works) == len(others)
        taken = {sequence: found.tokens[list(places)].tolist() for sequence, places in found.drafted.items()}
        assert taken == {1: [7, 9], 2: [5], 3: [8]}
        assert not others or found.tokens[0] == 30
    assert before_drafts(before, works, {}) is before
