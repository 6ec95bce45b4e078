"""Tells which texts are such as a grammar describes."""

from collections.abc import Sequence

from llguidance import LLTokenizer

from checkpoints.grammars import compiled


def fits(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    """Whether a text is, from its beginning to its end."""
    return fitting(tokenizer, grammar, [text]) == [text]


def fitting(tokenizer: LLTokenizer, grammar: str, texts: Sequence[str]) -> list[str]:
    made, found = compiled(tokenizer, grammar), []
    for text in texts:
        matcher, ids = made.deep_copy(), tokenizer.tokenize_str(text)
        if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
            found.append(text)
    return found
