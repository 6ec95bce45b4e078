"""Medusa heads guess what they were made to guess, from the right state, and change no token."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor
from transformers import AutoTokenizer

from contracts.messages.sampling import Sampling
from demo_model.corpus import conversations
from demo_model.evaluate import prompt
from engine.plan import Proposal, StepPlan, StepResult, Work
from engine.speculation.proposers.choices import MAX_CHOICES, Tree, likeliest
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.speculation.proposers.pending_drafts import DraftedTokens
from engine.start.load import LoadedEngine
from tests.engine.drive import GREEDY
from tests.engine.grammars.answering import DEMO, VOCABULARY, random_model
from tests.engine.speculation.medusa_heads import ReferenceHeads, build_heads, states
from tests.engine.speculation.prompting import Prompting
from tests.engine.speculation.proposers.test_draft import SAMPLINGS
from tests.engine.speculation.serving import Asked, Serving
from tests.engine.test_golden import make_engine
from tests.reference import make_prompts

HEADS, BLOCKS = 4, 2
TREE = Tree.of(likeliest(HEADS, MAX_CHOICES))
OUTPUT_TOKENS = 24
DRAFT_TOKENS = 8
HOT = Sampling(seed=4, temperature=1.5)
SHIPPED = DEMO.parent / "medusa"
SEED = 1234  # of conversations that no training has seen


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("medusa") / "target")


@pytest.fixture(scope="module")
def heads(model: Path) -> ReferenceHeads:
    return build_heads(model.parent / "heads", HEADS, BLOCKS)


@pytest.fixture(scope="module")
def engine(model: Path, heads: ReferenceHeads) -> LoadedEngine:
    return make_engine(model, speculation="medusa", medusa=str(model.parent / "heads"))


class Listening:
    """Lets an engine's proposer guess, and keeps the text that it guessed behind with the guesses."""

    def __init__(self, proposer: ModelProposer) -> None:
        self._proposer = proposer
        self.heard: list[tuple[list[int], Proposal]] = []

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> Mapping[int, Proposal | DraftedTokens]:
        found = self._proposer.propose(plan, result, hidden)
        for index, guesses in found.items():
            known = plan.works[index].tokens
            assert known is not None and isinstance(guesses, Proposal)
            self.heard.append(([*known, *result.tokens[index]], guesses))
        return found


def asked(samplings: list[Sampling], salt: str = "") -> list[Asked]:
    prompts = make_prompts([3, 16, 40, 65], VOCABULARY)
    return [
        Asked(prompt, OUTPUT_TOKENS, sampling, salt=salt) for prompt, sampling in zip(prompts, samplings, strict=True)
    ]


def best(heads: ReferenceHeads, state: Tensor, count: int, behind: int = 0) -> Proposal:
    """The first `count` of the tree's guesses, by heads of which the first `behind` are of the past."""
    tokens = [logits.topk(8).indices.tolist() for logits in heads(state)[behind:]]
    ways = TREE.choices[:count]
    return Proposal([tokens[len(way) - 1][way[-1]] for way in ways], parents=TREE.parents[:count])


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_each_head_reads_the_state_that_the_last_token_was_drawn_from(
    sampling: Sampling, model: Path, heads: ReferenceHeads, engine: LoadedEngine
) -> None:
    """Whatever came of the guesses before: transformers' states, PyTorch's modules, and of each the best tokens.

    Some guesses are exchanged for the truth, so that each number of them comes true now and then.
    """
    assert engine.proposer is not None
    plain = Serving(engine, None, 0).run(asked([sampling] * 4))
    texts = [[*each.prompt, *tokens] for each, tokens in zip(asked([sampling] * 4), plain, strict=True)]
    listening = Listening(engine.proposer)
    serving = Serving(engine, Prompting(listening, texts), DRAFT_TOKENS)
    assert serving.run(asked([sampling] * 4, "heard")) == plain
    assert {0, 1, 2} <= {place for _, place in serving.guesses.cut}
    of_texts = [states(model, text) for text in texts]
    for text, guesses in listening.heard:
        number = next(number for number, whole in enumerate(texts) if whole[: len(text)] == text)
        assert guesses == best(heads, of_texts[number][len(text) - 2], DRAFT_TOKENS)
    assert len(listening.heard) > 20


def test_guesses_change_no_token(engine: LoadedEngine) -> None:
    """Greedy, with filters, with penalties and bad words, and hot; several sequences at once."""
    plain = Serving(engine, None, 0).run(asked(SAMPLINGS))
    serving = Serving(engine, engine.proposer, DRAFT_TOKENS)
    assert serving.run(asked(SAMPLINGS)) == plain
    assert serving.guesses.tokens > 100


def test_tokens_that_a_grammar_gave_take_the_first_heads_guesses_place(
    model: Path, heads: ReferenceHeads, engine: LoadedEngine
) -> None:
    """Gives five tokens: one was foreseen, one drawn, and three had to follow, so that one head is left to guess."""
    assert engine.proposer is not None
    text = make_prompts([12], VOCABULARY)[0]
    work = Work(1, 11, [text[-1], 7, 8], ([1],), HOT, tokens=text, output_index=5, proposed=(7, 8), propose=4)
    of_text = states(model, [*text, 7, 8])

    with torch.inference_mode():
        found = engine.proposer.propose(
            StepPlan(0, [work]), StepResult(0, [[7, 9, 1, 2, 3]], accepted={0: [0]}), of_text[11:14]
        )
        all_past = engine.proposer.propose(
            StepPlan(0, [work]), StepResult(0, [[7, 9, 1, 2, 3, 4]], accepted={0: [0]}), of_text[11:14]
        )
        few = structs.replace(work, token_ids=[text[-1]], proposed=(), propose=2)
        other = structs.replace(work, parents=(-1, -1))
        of_other = engine.proposer.propose(
            StepPlan(0, [other]), StepResult(0, [[8, 9]], accepted={0: [1]}), of_text[11:14]
        )
        of_few = engine.proposer.propose(StepPlan(0, [few]), StepResult(0, [[7]]), of_text[11:12])
    assert found == {0: Proposal(best(heads, of_text[12], 1, behind=3).tokens)}
    assert all_past == {}
    assert of_few == {0: Proposal(best(heads, of_text[11], 2).tokens)}
    assert of_other == {0: best(heads, of_text[13], 4)}


def test_shipped_heads_foresee_what_the_readme_says() -> None:
    """Counts the first head's right guesses in greedy answers: the README's share, less two standard deviations."""
    engine = make_engine(DEMO, speculation="medusa", medusa=str(SHIPPED), kv_memory=16 << 20)
    stream, tokenizer = conversations(SEED), AutoTokenizer.from_pretrained(DEMO)
    prompts = [tokenizer.encode(prompt(tokenizer, next(stream)), add_special_tokens=False) for _ in range(12)]
    plain = Serving(engine, None, 0).run([Asked(tokens, 40, GREEDY) for tokens in prompts])
    ended = [[*tokens, tokenizer.eos_token_id].index(tokenizer.eos_token_id) for tokens in plain]
    chats = [Asked(tokens, max(2, end), GREEDY, salt="guessed") for tokens, end in zip(prompts, ended, strict=True)]
    serving = Serving(engine, engine.proposer, 1)
    assert serving.run(chats) == [tokens[: each.tokens] for tokens, each in zip(plain, chats, strict=True)]
    guesses, told = serving.guesses, 0.687
    assert guesses.foreseen > guesses.tokens * told - 2 * (guesses.tokens * told * (1 - told)) ** 0.5
    assert guesses.tokens > 80
