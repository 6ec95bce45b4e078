"""A tokenizer in another file than tokenizer.json: prompts, streamed answers and grammars have the ids of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.grammars import compiled, read_tokenizer
from contracts.errors import ModelError
from gateway.text.chat import Chat
from gateway.text.tokenizer import ModelTokenizer
from tests.checkpoints.vocabulary.models import DATA, TEXTS, sentencepiece, tekken, tiktoken, write
from tests.gateway.text.test_detokenizer import text_of

MAKE: dict[str, Callable[[Path], Path]] = {
    "tekken": tekken,
    "tiktoken": tiktoken,
    "sentencepiece": lambda directory: sentencepiece(directory, DATA / "tokenizer.model.v1"),
}
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ '[INST]' + message.content + eos_token }}{% endfor %}"
FORM = 'start: "{" /[a-z]+/ ": " /[0-9]{1,3}/ "} é🙂"'


@pytest.fixture(scope="module", params=MAKE)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = MAKE[request.param](tmp_path_factory.mktemp("model"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


def test_prompts_and_streamed_answers(model: Path) -> None:
    ours = ModelTokenizer(model)
    end = ours.named["eos_token"]
    end_id = ours.token_id(end)
    assert end_id is not None and end_id in ours.stop_ids
    for text in TEXTS:
        ids = ours.encode(text, special=False)
        assert text_of(ours.detokenizer(), ids) == ours.decode(ids) == text
        begin = ours.token_id(ours.named["bos_token"])
        assert ours.chat(Chat([{"role": "user", "content": text}]))[0] == begin
    # What a client spells out is text, wherever it is.
    honest, forged = (ours.chat(Chat([{"role": "user", "content": f"a{more}b"}])) for more in ("", end))
    assert honest.count(end_id) == forged.count(end_id) == 1


def test_a_grammar_has_the_same_tokens(model: Path) -> None:
    ours = ModelTokenizer(model)
    grammars = read_tokenizer(model, ours.vocabulary)
    text = "{abc: 12} é🙂"
    ids = ours.encode(text, special=False)
    space = bytes(grammars.decode_bytes(ids)) != text.encode()  # SentencePiece's, in front of a text
    assert bytes(grammars.decode_bytes(ids)) == (b" " if space else b"") + text.encode()
    matcher = compiled(grammars, FORM.replace('"{"', '" {"') if space else FORM)
    assert matcher.consume_tokens(ids) and matcher.is_accepting()
    assert set(grammars.eos_tokens) <= set(ours.stop_ids)


def test_without_any_file_the_ones_that_are_read_are_named(tmp_path: Path) -> None:
    (write(tmp_path, {}) / "qwen.tiktoken").write_text("")
    words = (
        r"has no tokenizer\.json, and no tekken\.json, tiktoken\.model or tokenizer\.model either; qwen\.tiktoken is"
    )
    with pytest.raises(ModelError, match=words):
        ModelTokenizer(tmp_path)
