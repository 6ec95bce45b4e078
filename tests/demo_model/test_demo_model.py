"""The demo model: its text is reproducible and honest, its tokenizer whole, and what is shipped answers."""

import json
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.conversation import Conversation, Exchange, messages
from demo_model.corpus import conversations
from demo_model.evaluate import contains, generate, mentions_all, prompt
from demo_model.lessons import animals, baton, echo, poems, reach, smalltalk, stories, sums, words
from demo_model.packing import ROW_LENGTHS, Packer
from demo_model.split import Split
from demo_model.tokenizer import SPECIAL, Encoder
from demo_model.train import VOCABULARY_TOKENS, WEIGHTS

SAMPLED_CONVERSATIONS = 4000


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(WEIGHTS, dtype="float32")


def test_the_same_seed_gives_the_same_text() -> None:
    first, again, other = (list(islice(conversations(seed), 200)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_held_out_questions_never_occur_in_training() -> None:
    rng = Random(0)
    held_out = {sums.addition(rng, Split.HELD_OUT).ask for _ in range(300)}
    held_out |= {sums.addition(rng, Split.HELD_OUT, sums.NEW_ASKS).ask for _ in range(300)}
    held_out |= {sums.difference(rng, Split.HELD_OUT).ask for _ in range(300)}
    held_out |= {animals.fact(rng, Split.HELD_OUT).ask for _ in range(300)}
    held_out |= {stories.story(rng, Split.HELD_OUT, stories.Reserve.KNOWN).ask for _ in range(300)}
    trained = {exchange.ask for talk in islice(conversations(0), SAMPLED_CONVERSATIONS) for exchange in talk.turns}
    assert not held_out & trained


def test_reserved_nouns_are_in_no_training_story() -> None:
    exchanges = [exchange for talk in islice(conversations(0), SAMPLED_CONVERSATIONS) for exchange in talk.turns]
    told = {noun for exchange in exchanges if len(exchange.answer.split()) >= 50 for noun in exchange.subject}
    assert len(told) > 200
    reserved = words.on_side(words.CREATURES + words.PEOPLE + words.THINGS, Split.HELD_OUT)
    assert len(reserved) > 20
    assert not set(reserved) & told


@pytest.mark.parametrize("reserve", list(stories.Reserve))
def test_every_story_mentions_what_was_asked(reserve: stories.Reserve) -> None:
    rng = Random(1)
    for _ in range(300):
        exchange = stories.story(rng, Split.TRAIN, reserve)
        assert mentions_all(exchange, exchange.answer), exchange
        assert 50 <= len(exchange.answer.split()) <= 130


def test_every_generator_fills_all_of_its_slots() -> None:
    rng = Random(2)
    for make in (
        poems.poem,
        echo.echo,
        smalltalk.smalltalk,
        smalltalk.introduction,
        reach.out_of_reach,
        animals.any_fact,
        stories.any_story,
    ):
        for _ in range(500):
            exchange = make(rng)
            assert "{" not in exchange.ask + exchange.answer
    assert "{" not in "".join(baton.about_baton(rng, Split.TRAIN).answer for _ in range(500))


def test_sums_stay_within_twenty() -> None:
    rng = Random(3)
    totals = {int(sums.addition(rng, Split.TRAIN).subject[0].strip("= .")) for _ in range(1000)}
    assert totals == set(range(21))


@given(text=st.text(max_size=80))
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(token in text for token in SPECIAL):
        assert tokenizer.decode(ids) == text


def test_digits_stand_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    for token in tokenizer.get_vocab():
        assert len(token) == 1 or not any(character.isdigit() for character in token)


def test_emoji_take_several_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer.encode("🦊", add_special_tokens=False)) > 2


@pytest.mark.parametrize("system", [None, "Be kind."])
def test_training_and_chat_template_agree(tokenizer: PreTrainedTokenizerBase, system: str | None) -> None:
    encoder = Encoder(tokenizer.backend_tokenizer)
    talks = [talk for talk in islice(conversations(0), 400) if talk.tools or len(talk.turns) > 1]
    assert any(len(exchange.calls) > 1 for talk in talks for exchange in talk.turns)
    for talk in talks:
        chat = ([{"role": "system", "content": system}] if system else []) + messages(talk.turns)
        rendered = tokenizer.apply_chat_template(chat, tools=talk.definitions(), return_dict=False)
        ids, weights = encoder.encode(talk, system)
        assert ids == rendered
        answers = [id for id, weight in zip(ids, weights, strict=True) if weight > 0]
        said = [text for exchange in talk.turns for text in (exchange.calling(), exchange.answer) if text]
        assert tokenizer.decode(answers) == "".join(text + tokenizer.eos_token for text in said)


def test_packing_keeps_conversations_whole(tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = Encoder(tokenizer.backend_tokenizer)
    encoded = [encoder.encode(talk) for talk in islice(conversations(1), 800)]
    ids, weights = Packer(iter(encoded), batch_tokens=2048, pad=0).next_batch()
    assert ids.shape == weights.shape
    assert ids.shape[1] in ROW_LENGTHS
    known = {tuple(ids) for ids, _ in encoded}
    for row in ids.tolist():
        starts = [i for i, token in enumerate(row) if token == SPECIAL.index("<|bos|>")] + [len(row)]
        for start, end in pairwise(starts):
            piece = row[start:end]
            while piece[-1] == 0:
                piece.pop()
            assert tuple(piece) in known


def test_the_shipped_directory_is_small_and_complete() -> None:
    files = list(WEIGHTS.iterdir())
    assert sum(file.stat().st_size for file in files) <= 16 * 2**20
    config = json.loads((WEIGHTS / "config.json").read_text())
    assert (config["head_dim"], config["vocab_size"]) == (64, VOCABULARY_TOKENS)
    assert config["max_position_embeddings"] >= 1024
    with safe_open(WEIGHTS / "model.safetensors", framework="pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert 1_000_000 <= parameters <= 2_500_000


def test_the_shipped_model_adds(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    rng = Random(11)
    exchanges = [sums.addition(rng, Split.HELD_OUT) for _ in range(20)]
    answers = generate(model, tokenizer, [prompt(tokenizer, Conversation((exchange,))) for exchange in exchanges])
    right = [contains(exchange, answer) for exchange, answer in zip(exchanges, answers, strict=True)]
    assert sum(right) >= 19, answers


def test_the_shipped_model_stays_on_topic(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    ask = Exchange("Tell me a story about a fox and a lantern.", "")
    (answer,) = generate(model, tokenizer, [prompt(tokenizer, Conversation((ask,)))])
    assert answer.count("fox") >= 3
    assert answer.count("lantern") >= 3
    assert len(answer.split()) >= 40
