"""A draft model guesses, and nothing changes: its KV is where it looks for it, and its draws are the target's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from contracts.messages.sampling import Sampling
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs
from engine.model.batch import Batch, Sampled
from engine.plan import Work
from engine.speculation.proposers.draft import DraftProposer
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY
from tests.engine.grammars.answering import VOCABULARY, random_model
from tests.engine.speculation.serving import Asked, Serving
from tests.engine.test_golden import make_engine
from tests.reference import make_prompts

FILTERED = Sampling(seed=7, temperature=0.9, top_k=40, top_p=0.95)
PENALIZED = Sampling(
    seed=9, temperature=1.2, repetition_penalty=1.3, frequency_penalty=0.2, logit_bias=((5, 2.0),), bad_words=((7,),)
)
SAMPLINGS = [GREEDY, FILTERED, PENALIZED, Sampling(seed=11, temperature=2.0)]
LENGTHS = [3, 16, 40, 65]
OUTPUT_TOKENS = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and another model with its vocabulary."""
    directory = tmp_path_factory.mktemp("drafts")
    return random_model(directory / "target"), random_model(directory / "draft", seed=1)


@pytest.fixture(scope="module")
def twin(models: tuple[Path, Path]) -> LoadedEngine:
    """Loads the target with itself as its draft model."""
    return make_engine(models[0], speculation="draft", draft_model=str(models[0]))


def asked(salt: str = "") -> list[Asked]:
    prompts = make_prompts(LENGTHS, VOCABULARY)
    return [
        Asked(prompt, OUTPUT_TOKENS, sampling, salt=salt) for prompt, sampling in zip(prompts, SAMPLINGS, strict=True)
    ]


def test_a_draft_that_is_the_target_foresees_every_token(twin: LoadedEngine) -> None:
    """Its KV is right at each position, and its draws have the target's counters, filters and penalties."""
    plain = Serving(twin, None, 0).run(asked())
    serving = Serving(twin, twin.proposer, 4)
    assert serving.run(asked()) == plain
    guesses = serving.guesses
    assert guesses.cut == [] and guesses.tokens == guesses.foreseen
    assert guesses.decodes == guesses.guessed, "each step but a text's first verifies guesses"
    assert guesses.tokens >= 4 * OUTPUT_TOKENS * 0.75


def test_another_draft_s_guesses_change_no_token(models: tuple[Path, Path]) -> None:
    """Few are right. All are worth their place: what they have left in blocks is written over."""
    engine = make_engine(models[0], speculation="draft", draft_model=str(models[1]))
    plain = Serving(engine, None, 0).run(asked())
    serving = Serving(engine, engine.proposer, 3)
    assert serving.run(asked()) == plain
    assert 0 < serving.guesses.foreseen < serving.guesses.tokens / 2


def test_after_preemptions_the_draft_computes_what_it_lost(twin: LoadedEngine) -> None:
    """Blocks go to others meanwhile, and come back with another number, or with the same one."""
    plain = Serving(twin, None, 0, blocks=14).run(asked("preempted"))
    serving = Serving(twin, twin.proposer, 4, blocks=14)
    assert serving.run(asked("preempted")) == plain
    assert serving.guesses.preemptions and not serving.guesses.cut


def test_branches_have_the_stem_s_kv(twin: LoadedEngine) -> None:
    """Each copies the last block when it writes into it; the draft computes of that block what it lacks."""
    prompt = make_prompts([21], VOCABULARY, seed=3)[0]
    branches = [Asked(prompt, OUTPUT_TOKENS, Sampling(seed=3, temperature=1.5), samples=3, salt="branches")]
    plain = Serving(twin, None, 0).run(branches)
    serving = Serving(twin, twin.proposer, 4)
    assert serving.run(branches) == plain and len({tuple(tokens) for tokens in plain}) == 3
    assert not serving.guesses.cut and serving.guesses.decodes == serving.guesses.guessed + 3


@pytest.mark.parametrize("change", [{"kv_dtype": "int8"}, {"block_size": 8}, {"cpu_backend": "torch"}])
def test_a_twin_foresees_all_in_other_pools(change: dict[str, object], models: tuple[Path, Path]) -> None:
    """Shows that few guesses are wrong where KV is quantized, or PyTorch sums in another order: these nearly agree."""
    engine = make_engine(models[0], speculation="draft", draft_model=str(models[0]), **change)
    plain = Serving(engine, None, 0).run(asked())
    serving = Serving(engine, engine.proposer, 4)
    assert serving.run(asked()) == plain
    assert serving.guesses.foreseen > 0.95 * serving.guesses.tokens


def test_a_target_with_windows_lends_the_tables_of_its_full_layers(tmp_path: Path) -> None:
    windowed = random_model(tmp_path / "windowed", window=9)
    engine = make_engine(windowed, speculation="draft", draft_model=str(windowed))
    assert len(engine.pool.spec.groups) == 2
    plain = Serving(engine, None, 0).run(asked())
    serving = Serving(engine, engine.proposer, 4)
    assert serving.run(asked()) == plain and not serving.guesses.cut


def test_a_long_prompt_is_computed_in_chunks_beside_steps(models: tuple[Path, Path]) -> None:
    """A step computes no more of it than a step's tokens; until all is there, nothing is guessed."""
    engine = make_engine(models[0], speculation="draft", draft_model=str(models[0]), max_batch_tokens=24)
    prompts = make_prompts([100, 3], VOCABULARY)
    texts = [Asked(prompt, OUTPUT_TOKENS, GREEDY) for prompt in prompts]
    plain = Serving(engine, None, 0, batch=24).run(texts)
    serving = Serving(engine, engine.proposer, 4, batch=24)
    assert serving.run(texts) == plain
    waited = serving.guesses.decodes - serving.guesses.guessed
    assert 100 // 24 - 1 <= waited <= 100 // 24 + 3 and not serving.guesses.cut


def test_steps_that_are_launched_ahead_change_nothing(twin: LoadedEngine) -> None:
    """As on a GPU: others' steps are under way while guesses are made, and the host plans with unknown guesses."""
    ahead = replace(twin, launch_depth=2)
    plain = Serving(ahead, None, 0).run(asked("ahead"))
    serving = Serving(ahead, twin.proposer, 4)
    assert serving.run(asked("ahead")) == plain and not serving.guesses.cut
    assert 0 < serving.guesses.pending < serving.guesses.tokens, "penalties look at guesses"


class Counted:
    """Recorded steps of a draft model, and how many of its other steps ran beside them."""

    def __init__(self, engine: LoadedEngine, patch: pytest.MonkeyPatch) -> None:
        assert isinstance(engine.proposer, DraftProposer)
        draft = engine.proposer._draft
        assert isinstance(draft.steps, DecodeGraphs)
        self.replayed: list[int] = []  # works of each recorded step
        self.others = 0
        run, begin = draft.steps.run, draft.attention.begin

        def ran(works: Sequence[Work], before: Sampled | None, adapters: Sequence[int] | None = None) -> Tensor:
            self.replayed.append(len(works))
            return run(works, before, adapters)

        def begun(batch: Batch) -> Any:
            self.others += 1
            return begin(batch)

        patch.setattr(draft.steps, "run", ran)
        patch.setattr(draft.attention, "begin", begun)


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_triton_s_kernels_foresee_themselves(
    graphs: str, models: tuple[Path, Path], twin: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the interpreter: one sequence gets fewer guesses than the other, which go across a block's end."""
    small = {"cpu_backend": "triton", "decode_graphs": graphs, "max_sequences": 2, "max_batch_tokens": 16}
    engine = make_engine(models[0], speculation="draft", draft_model=str(models[0]), **small)
    counted = Counted(engine, monkeypatch) if graphs == "on" else None
    prompts = make_prompts([14, 3], VOCABULARY)
    texts = [Asked(prompts[0], 5, GREEDY), Asked(prompts[1], 3, Sampling(seed=11, temperature=2.0))]
    serving = Serving(replace(engine, launch_depth=2), engine.proposer, 3, batch=32)
    assert serving.run(texts) == Serving(twin, None, 0).run(texts)
    assert serving.guesses.tokens == serving.guesses.foreseen > 0
    if counted is not None:
        assert counted.replayed and set(counted.replayed) == {1, 2}
        assert counted.others == 0, "the prompts' tokens are mixed steps"
