"""Keeps tenants' newest answers, to draft similar answers from: a repeated question, a form, a tool call.

The timing of an answer reveals which text it was drafted from. Answers are therefore shared only within a salt, like
cached KV: usually within a tenant. Each salt has two texts of half the tokens each; when the newer one is full it
becomes the older one, whose answers are forgotten. Salts that are not looked up any more are forgotten too.
"""

from array import array
from collections.abc import Sequence

from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.suffixes import NO_MATCH, Suffixes

MAX_SALTS = 64
"""Maximum number of salts with kept answers; the most recently used are kept."""
PROMPT_TAIL_TOKENS = 16
"""Tokens at the end of the prompt that are kept with its answer: similar prompts begin similar answers."""


class EarlierAnswers:
    """Keeps a limited number of tokens of each salt, at about 16 bytes each."""

    def __init__(self, max_tokens: int) -> None:
        self._half = max(1, max_tokens // 2)
        self._texts: dict[str, list[_Text]] = {}  # by salt, the newer text first; the most recently used salt last

    def keep(self, salt: str, tokens: Sequence[int], prompt_tokens: int) -> None:
        """Keeps the answer, which follows `prompt_tokens` tokens of prompt."""
        answer = tokens[max(0, prompt_tokens - PROMPT_TAIL_TOKENS) :][-self._half :]
        texts = self._texts.pop(salt, None) or [_Text(self._half)]
        if len(texts[0].tokens) + len(answer) > self._half:
            texts = [_Text(self._half), texts[0]]
        texts[0].tokens.extend(answer)
        self._texts[salt] = texts
        if len(self._texts) > MAX_SALTS:
            del self._texts[next(iter(self._texts))]

    def find(self, salt: str, tokens: Sequence[int], count: int, longer: int) -> Proposal:
        """Returns up to `count` tokens after the longest match with the end of `tokens`, if over `longer` tokens."""
        texts = self._texts.pop(salt, None)
        if texts is None:
            return NO_PROPOSAL
        self._texts[salt] = texts
        best, found = NO_MATCH, texts[0]
        for text in texts:
            match = text.suffixes.find(text.tokens, tokens)
            if match.length > max(best.length, longer):
                best, found = match, text
        if not best.length:
            return NO_PROPOSAL
        return Proposal(found.tokens[best.position : best.position + count].tolist(), best.length)

    def counts(self) -> dict[str, int]:
        return {salt: sum(len(text.tokens) for text in texts) for salt, texts in self._texts.items()}


class _Text:
    """Concatenated answers, with an index of their tokens."""

    __slots__ = ("suffixes", "tokens")

    def __init__(self, max_tokens: int) -> None:
        self.tokens: array[int] = array("I")
        self.suffixes = Suffixes(max_tokens)
