"""Matches composed outputs against grammars, over a tokenizer that has a family's markers, or has not."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

DEMO = Path(__file__).parents[3] / "demo_model" / "weights" / "tokenizer.json"
END = "<|end of text|>"
Kind = Literal["special", "added", "spelled"]


class Vocabulary:
    """Has markers as special tokens, as added ones that are not special, or not at all: spelled by other tokens."""

    def __init__(self, markers: Collection[str], kind: Kind) -> None:
        made = json.loads(DEMO.read_text("utf-8"))
        made["added_tokens"] = []  # the demo model's own markers are nobody's here
        self.tokenizer = Tokenizer.from_str(json.dumps(made))
        self.tokenizer.add_special_tokens([END])
        if kind != "spelled":
            tokens = [AddedToken(text, special=kind == "special", normalized=False) for text in sorted(markers)]
            self.tokenizer.add_tokens(tokens)
        self._added = {token.content: id for id, token in self.tokenizer.get_added_tokens_decoder().items()}
        self.end = self._added[END]
        self._compiled: dict[str, LLMatcher] = {}
        self.matching = LLTokenizer(
            self.tokenizer.to_str(), n_vocab=self.tokenizer.get_vocab_size(), eos_token=self.end
        )

    def token_id(self, text: str) -> int | None:
        return self._added.get(text)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def matcher(self, grammar: str) -> LLMatcher:
        """Returns a fresh matcher; each grammar is compiled once."""
        if grammar not in self._compiled:
            self._compiled[grammar] = LLMatcher(self.matching, grammar)
        matcher = self._compiled[grammar].deep_copy()
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        return matcher

    def accepted(self, grammar: str, text: str) -> str:
        """Returns as much of a text as the grammar accepts; all of it only if the answer may end there."""
        matcher, ids = self.matcher(grammar), self.ids(text)
        count = matcher.try_consume_tokens(ids)
        whole = count == len(ids) and matcher.is_accepting()
        return text if whole else self.text(ids[:count]) + "…"
