"""An EAGLE head proposes what its published form proposes, and its KV is the same however a text was cut."""

from pathlib import Path

import pytest
import torch
from msgspec import structs
from transformers import LlamaConfig

from contracts.errors import ModelError
from contracts.kv.spec import blocks_for
from engine.executor import Executor
from engine.plan import NO_PROPOSAL, StepPlan, Work
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY, run, start
from tests.engine.speculation.heads import ReferenceHead, build_head, build_next_layer, edited, guesses
from tests.engine.test_golden import BACKENDS, make_engine
from tests.reference import build_model, make_prompts
from tests.variants import SIZES, VARIANTS

LENGTHS = (3, 16, 17, 30)
DRAFT_TOKENS = 4


def speculating(engine: LoadedEngine) -> Executor:
    """An executor whose engine has a head."""
    assert engine.follower is not None
    return Executor(engine, proposer=engine.follower)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("eagle") / "model", VARIANTS["llama"]())


@pytest.fixture(scope="module")
def head(model: Path) -> ReferenceHead:
    return build_head(model.parent / "head", VARIANTS["llama"](), bias=True)


def with_head(model: Path, **changes: object) -> LoadedEngine:
    return make_engine(model, speculation="eagle", eagle=str(model.parent / "head"), **changes)


def asked(number: int, prompt: list[int], first: int, start: int, end: int) -> Work:
    """A chunk of a prompt, whose blocks begin with `first`; the last one is sampled, and asks for guesses."""
    blocks = (list(range(first, first + 4)),)
    last = end >= len(prompt)
    sampling = GREEDY if last else None
    return Work(number, start, prompt[start:end], blocks, sampling, propose=DRAFT_TOKENS if last else 0)


def run_prompts(executor: Executor, prompts: list[list[int]], chunk: int) -> tuple[list[list[int]], list[list[int]]]:
    """Computes prompts side by side in chunks; returns the first tokens, and the guesses behind them."""
    tokens: dict[int, list[int]] = {}
    proposed: dict[int, list[int]] = {}
    for step, begin in enumerate(range(0, max(map(len, prompts)), chunk)):
        works = [
            asked(number, prompt, 1 + 4 * number, begin, min(begin + chunk, len(prompt)))
            for number, prompt in enumerate(prompts)
            if begin < len(prompt)
        ]
        executor.launch(StepPlan(step, works))
        result = executor.collect()
        tokens |= {work.sequence: found for work, found in zip(works, result.tokens, strict=True) if found}
        proposed |= {works[index].sequence: guessed.tokens for index, guessed in result.proposed.items()}
    order = range(len(prompts))
    return [tokens[number] for number in order], [proposed[number] for number in order]


@pytest.mark.parametrize("backend", BACKENDS)
def test_guesses_are_those_of_the_published_head(backend: str, model: Path, head: ReferenceHead) -> None:
    """Prompts in chunks side by side: the first guess is behind the token that the step gave."""
    executor = speculating(with_head(model, cpu_backend=backend))
    prompts = make_prompts(LENGTHS, 320)
    tokens, proposed = run_prompts(executor, prompts, chunk=7)
    for prompt, token, guessed in zip(prompts, tokens, proposed, strict=True):
        assert guessed == guesses(model, head, prompt + token, DRAFT_TOKENS)


@pytest.mark.parametrize("backend", [*BACKENDS, "triton"])
def test_guesses_behind_verified_ones_are_those_of_the_text(backend: str, model: Path, head: ReferenceHead) -> None:
    """Gets two of three proposals right: the next guesses go on from the token that was drawn in place of the third."""
    executor = speculating(with_head(model, cpu_backend=backend))
    (prompt,) = make_prompts([21], 320)
    tokens, _ = run_prompts(executor, [prompt], chunk=64)
    text, blocks = prompt + tokens[0], (list(range(1, 5)),)
    plain = Executor(with_head(model, cpu_backend=backend))
    for step in range(4):  # what will come
        plain.launch(StepPlan(step, [Work(0, 0, text + tokens[0][1:], blocks, GREEDY)]))
        tokens[0] += plain.collect().tokens[0]
    coming = tokens[0][1:]
    wrong = (coming[2] + 1) % 320
    proposed = (*coming[:2], wrong)
    work = Work(0, 21, [text[-1], *proposed], blocks, GREEDY, output_index=1, proposed=proposed, propose=DRAFT_TOKENS)
    plan, engine = StepPlan(9, [work]), executor.engine
    assert engine.follower is not None and not engine.follower.stores(plan), "so the step may be recorded"
    assert (engine.decode_steps is not None and engine.decode_steps.serves(plan)) == (backend == "triton")
    executor.launch(plan)
    result = executor.collect()
    assert result.tokens == [coming[:3]]
    assert result.proposed[0].tokens == guesses(model, head, text + coming[:3], DRAFT_TOKENS)


def kv_of_head(executor: Executor, blocks: range, tokens: int) -> torch.Tensor:
    """Returns the head's keys and values `[tokens, vectors, width]` of a text in these blocks."""
    layer = executor.engine.pool.layers[-1][list(blocks)]
    return layer.transpose(1, 2).flatten(0, 1)[:tokens].clone()


def test_kv_is_the_same_however_a_prompt_is_cut(model: Path, head: ReferenceHead) -> None:
    """To the bit, by the native operators: a row's sums do not depend on its company."""
    (prompt,) = make_prompts([40], 320)
    found = []
    for chunk in (64, 16, 7, 1):
        executor = speculating(with_head(model))
        run_prompts(executor, [prompt], chunk)
        found.append(kv_of_head(executor, range(1, 4), len(prompt)))
    assert found[0][0].count_nonzero() == 0 and found[0][1:].count_nonzero(dim=(1, 2)).min() > 0
    for other in found[1:]:
        assert torch.equal(found[0], other)


@pytest.mark.parametrize("chunk", [64, 7])
def test_kv_behind_what_was_found_in_the_cache_is_that_of_the_whole_text(
    chunk: int, model: Path, head: ReferenceHead
) -> None:
    """A second text goes on from the first one's first two blocks; what is not that block's tells nothing."""
    (prompt,) = make_prompts([40], 320)
    whole, executor = speculating(with_head(model)), speculating(with_head(model))
    run_prompts(whole, [prompt], chunk=64)
    run_prompts(executor, [[*prompt[:34], 7, 7, 7]], chunk)
    for first, number, blocks in ((32, 7, [1, 2, 9]), (16, 8, [1, 10, 11])):
        executor.launch(StepPlan(9, [Work(number, first, prompt[first:], (blocks,), GREEDY, propose=DRAFT_TOKENS)]))
        executor.collect()
        found = torch.cat([kv_of_head(executor, range(block, block + 1), 16) for block in blocks])[:40]
        assert torch.equal(found, kv_of_head(whole, range(1, 4), 40))
    executor.launch(StepPlan(10, [Work(9, 32, prompt[32:], ([1, 5, 12],), GREEDY, propose=DRAFT_TOKENS)]))
    executor.collect()
    assert kv_of_head(executor, range(12, 13), 1).count_nonzero() == 0, "block 5 was never computed"


@pytest.mark.parametrize("backend", ["native", "triton"])
def test_kv_of_what_was_decoded_is_that_of_the_whole_text(backend: str, model: Path, head: ReferenceHead) -> None:
    """Mixes guesses that are right, are wrong, and find no block, with steps in which nobody asks for any."""
    (prompt,) = make_prompts([5], 320)
    plain = Executor(make_engine(model))
    (running,) = start(plain, [prompt], 50)
    (coming,) = run(plain, [running], 50)
    executor, table, text = speculating(with_head(model, cpu_backend=backend)), list(range(1, 7)), list(prompt)
    lengths: set[int] = set()
    for step in range(50):
        begin = 0 if step == 0 else len(text) - 1
        right = coming[len(text) - len(prompt) :][: step % 4]
        proposed = () if step == 0 else (*right, *[7] * (step % 3))
        blocks = (table[: blocks_for(len(text) + len(proposed), 16)],)
        index, most = len(text) - len(prompt), 0 if step % 5 == 4 else DRAFT_TOKENS
        work = Work(0, begin, [*text[begin:], *proposed], blocks, GREEDY, output_index=index)
        executor.launch(StepPlan(step, [structs.replace(work, proposed=proposed, propose=most)]))
        result = executor.collect()
        text += result.tokens[0]
        lengths.add(len(result.proposed.get(0, NO_PROPOSAL).tokens))
        if len(text) > (48 if backend == "native" else 32):
            break
    assert text == [*prompt, *coming][: len(text)] and {0, DRAFT_TOKENS} < lengths
    whole = speculating(with_head(model, cpu_backend=backend))
    run_prompts(whole, [text], chunk=64)
    # What stands at the newest tokens is stored by the steps to come.
    found, expected = (kv_of_head(each, range(1, 5), len(text) - 1) for each in (executor, whole))
    tolerance = 0.0 if backend == "native" else 1e-5  # whose sums have an order of their own for each number of rows
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_what_is_decoded_while_nobody_asks_has_keys_and_values_of_zero(model: Path, head: ReferenceHead) -> None:
    """Guesses go on from there when somebody asks again, and a block that was another's does not show."""
    (prompt,) = make_prompts([16], 320)
    executor, blocks = speculating(with_head(model)), (list(range(1, 5)),)
    executor.engine.pool.layers[-1][2:] = float("nan")  # what was there before
    tokens, _ = run_prompts(executor, [prompt], chunk=16)
    text = prompt + tokens[0]
    executor.engine.pool.layers[-1][2:] = float("nan")
    for step in range(4):
        asks = DRAFT_TOKENS if step == 3 else 0
        index = len(text) - len(prompt)
        work = Work(0, len(text) - 1, text[-1:], blocks, GREEDY, output_index=index, propose=asks)
        executor.launch(StepPlan(step, [work]))
        result = executor.collect()
        text += result.tokens[0]
    found = kv_of_head(executor, range(1, 5), 21)
    assert found[16:20].count_nonzero() == 0 and len(result.proposed[0].tokens) == DRAFT_TOKENS
    assert found[20].isfinite().all() and found[20].count_nonzero() > 0


def test_a_state_that_came_along_continues_a_text_whose_kv_did(model: Path, head: ReferenceHead) -> None:
    """What a prefill worker tells of its last token is what the decode worker's first guesses need."""
    (prompt,) = make_prompts([19], 320)
    first, second = (speculating(with_head(model)) for _ in range(2))
    work = structs.replace(asked(0, prompt, 1, 0, 19), propose=0, returns_state=True)
    first.launch(StepPlan(0, [work]))
    told = first.collect()
    for here, there in zip(first.engine.pool.layers, second.engine.pool.layers, strict=True):
        there.copy_(here)
    text = prompt + told.tokens[0]
    going = Work(5, 19, text[-1:], work.blocks, GREEDY, output_index=1, propose=DRAFT_TOKENS, state=told.states[0])
    second.launch(StepPlan(0, [going]))
    result = second.collect()
    assert result.proposed[0].tokens == guesses(model, head, text + result.tokens[0], DRAFT_TOKENS)
    assert kv_of_head(second, range(1, 3), 20)[19].count_nonzero() > 0


@pytest.mark.parametrize("variant", ["deepseek-v3", "deepseek-v3-dense"])
def test_a_checkpoints_own_layer_for_further_tokens_proposes(variant: str, tmp_path: Path) -> None:
    """Its latent attention and experts are those of the model's layers; a norm is before the model's head."""
    config = VARIANTS[variant]()
    if variant == "deepseek-v3-dense":
        config.first_k_dense_replace = 5
    reference = build_next_layer(tmp_path / "model", config)
    prompts = make_prompts(LENGTHS, 320)
    for backend in BACKENDS:
        executor = speculating(make_engine(tmp_path / "model", speculation="eagle", cpu_backend=backend))
        tokens, proposed = run_prompts(executor, prompts, chunk=7)
        for prompt, token, guessed in zip(prompts, tokens, proposed, strict=True):
            assert guessed == guesses(tmp_path / "model", reference, prompt + token, DRAFT_TOKENS), backend


def test_heads_of_other_shapes_and_kinds_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    def refused(name: str, **changes: object) -> str:
        with pytest.raises(ModelError) as caught:
            make_engine(model, speculation="eagle", eagle=str(tmp_path / name), **changes)
        return str(caught.value)

    llama = VARIANTS["llama"]()
    build_head(tmp_path / "wide", LlamaConfig(**{**SIZES, "hidden_size": 64}))
    assert refused("wide") == "wide: an EAGLE head for 64 states, but model has 128"
    build_head(tmp_path / "words", LlamaConfig(**{**SIZES, "vocab_size": 64}))
    assert refused("words") == "words: an EAGLE head for 64 tokens, but model has 320"
    build_head(tmp_path / "cut", llama)
    edited(tmp_path / "cut", lambda tensors: tensors.update({"fc.weight": torch.zeros(128, 255)}))
    assert refused("cut") == "cut: fc.weight has shape [128, 255], but the config says [128, 256]"
    edited(tmp_path / "cut", lambda tensors: tensors.pop("fc.weight"))
    assert refused("cut") == "cut: the weights lack fc.weight"
    build_head(tmp_path / "three", llama)
    edited(tmp_path / "three", lambda tensors: tensors.update({"midlayer.hidden_norm.weight": torch.ones(128)}))
    assert refused("three") == "three: an EAGLE-3 head, which reads states of three layers, is not supported"
    build_head(tmp_path / "more", llama)
    edited(tmp_path / "more", lambda tensors: tensors.update({"layers.1.mlp.up_proj.weight": torch.ones(1, 1)}))
    assert refused("more") == "more: the config has no place for the weight layers.1.mlp.up_proj.weight"
    assert refused("none") == f"{tmp_path / 'none'} has no config.json: not a model directory in Hugging Face format"
    with pytest.raises(ModelError, match="model: num_nextn_predict_layers names no layer that predicts further tokens"):
        make_engine(model, speculation="eagle")


def test_workers_with_another_head_or_none_pass_no_kv(model: Path, head: ReferenceHead, tmp_path: Path) -> None:
    build_head(tmp_path / "head", VARIANTS["llama"](), seed=2)
    engines = [
        make_engine(model),
        with_head(model),
        make_engine(model, speculation="eagle", eagle=str(tmp_path / "head")),
    ]
    assert len({engine.pool.spec.fingerprint() for engine in engines}) == 3
    assert len({engine.pool.spec.content() for engine in engines}) == 3
    assert with_head(model).pool.spec.fingerprint() == engines[1].pool.spec.fingerprint()
