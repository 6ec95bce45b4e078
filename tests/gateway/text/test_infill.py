"""A text's middle is asked for by the model's own tokens, in the order that it was trained with."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from gateway.text.infill import INFILL_MARKERS
from gateway.text.tokenizer import ModelTokenizer
from tests.gateway.models import byte_level, llama_style


def with_tokens(directory: Path, kind: tuple[str, str, str]) -> ModelTokenizer:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in kind])
    tokenizer.save(str(directory / "tokenizer.json"))
    return ModelTokenizer(directory)


def test_prefix_suffix_and_middle(tmp_path: Path) -> None:
    for number, kind in enumerate(INFILL_MARKERS):
        ours = with_tokens(byte_level(tmp_path / str(number)), kind)
        assert ours.infill is not None
        before, between, behind = (ours.token_id(token) or 0 for token in kind)
        ids = ours.infill.tokens("def f(x):\n", "\n    return y", None)
        assert (ids[0], ids[-1]) == (before, behind) and ids.count(between) == 1
        place = ids.index(between)
        assert ours.decode(ids[1:place]) == "def f(x):\n" and ours.decode(ids[place + 1 : -1]) == "\n    return y"


def test_a_text_begins_as_the_tokenizer_begins_it(tmp_path: Path) -> None:
    ours = with_tokens(llama_style(tmp_path), INFILL_MARKERS[0])
    assert ours.infill is not None
    start = ours.token_id("<s>")
    assert ours.infill.tokens("a", "b", None)[:2] == [start, ours.token_id(INFILL_MARKERS[0][0])]


def test_other_models_cannot(tmp_path: Path) -> None:
    assert ModelTokenizer(byte_level(tmp_path)).infill is None
