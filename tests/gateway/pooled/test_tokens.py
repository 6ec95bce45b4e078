"""Pairs of texts are tokenized as rerankers were trained to see them, and only the document is cut."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from gateway.pooled.tokens import of_inputs, of_pairs
from gateway.text.tokenizer import ModelTokenizer, TooManyTokens
from tests.gateway.models import CHATML, byte_level, word_pieces

PAIR = ("a quick fox?", "The lazy dog jumps over the lazy dog.")
ROLES = (
    "{% for each in messages %}{% if each.role == 'query' %}Q{% elif each.role == 'document' %}D{% endif %}"
    "{{ each.content }}{% endfor %}"
)


def admission(tokenizer: ModelTokenizer) -> Any:
    return SimpleNamespace(tokenizer=tokenizer)


def test_a_classifiers_pair_has_the_tokens_of_its_template(tmp_path: Path) -> None:
    directory = byte_level(tmp_path, template=None)
    made = Tokenizer.from_file(str(directory / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair="<|im_start|> $A <|im_end|> $B:1 <|im_end|>:1",
        special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
    )
    made.save(str(directory / "tokenizer.json"))
    tokenizer = ModelTokenizer(directory)
    first, second = (tokenizer.encode(text, special=False) for text in PAIR)
    tokens = of_pairs(admission(tokenizer), [PAIR], asks=False)
    assert tokens(999, False) == [[1, *first, 2, *second, 2]]
    most = len(first) + 6
    assert tokens(most, True) == [[1, *first, 2, *second[:3], 2]]
    with pytest.raises(TooManyTokens):
        tokens(most, False)
    with pytest.raises(TooManyTokens):
        tokens(len(first), True)  # the query alone does not fit
    assert of_inputs(admission(tokenizer), [PAIR[0]])(5, True) == [[1, *first[:3], 2]]


@pytest.mark.parametrize("template", [CHATML, None])
def test_a_model_that_answers_with_a_word_is_asked_as_qwen3_reranker(template: str | None, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(byte_level(tmp_path, template=template))
    tokens = of_pairs(admission(tokenizer), [PAIR], asks=True)
    (ids,) = tokens(9999, False)
    text = tokenizer.written(ids)
    assert text.startswith("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query")
    asked = "retrieve relevant passages that answer the query\n<Query>: a quick fox?\n<Document>: The lazy dog jumps"
    assert f"<Instruct>: Given a web search query, {asked} over the lazy dog.<|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    (cut,) = tokens(len(ids) - 5, True)
    assert len(ids) - 7 <= len(cut) <= len(ids) - 5
    assert tokenizer.written(cut).endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(TooManyTokens):
        tokens(len(ids) - 5, False)


def test_a_template_that_knows_queries_and_documents_renders_the_pair(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(byte_level(tmp_path, template=ROLES))
    (ids,) = of_pairs(admission(tokenizer), [PAIR], asks=True)(999, False)
    assert tokenizer.written(ids) == f"Q{PAIR[0]}D{PAIR[1]}"


def test_berts_texts_and_pairs_are_tokenized_as_by_transformers(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    tokenizer, reference = ModelTokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    single, pair = of_inputs(admission(tokenizer), [PAIR[0]]), of_pairs(admission(tokenizer), [PAIR], asks=False)
    assert single(99, False) == [reference(PAIR[0])["input_ids"]]
    assert single(4, True) == [reference(PAIR[0], truncation=True, max_length=4)["input_ids"]]
    assert pair(99, False) == [reference(*PAIR)["input_ids"]]
    assert pair(12, True) == [reference(*PAIR, truncation="only_second", max_length=12)["input_ids"]]
