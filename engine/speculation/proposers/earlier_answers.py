"""Keeps tenants' newest answers, for guesses of answers like them: the same question again, a form, a call of a tool.

What an answer was guessed from shows in its time. So answers serve those only who also find each other's KV in the
cache: the prompts of one salt, as a tenant's are. Of each salt two texts are kept, of half the tokens each: when the
newer one is full it becomes the older one, whose answers are forgotten. Salts that were not asked for are forgotten.
"""

from array import array
from collections.abc import Sequence

from engine.plan import NO_PROPOSAL, Proposal
from engine.speculation.proposers.suffixes import NO_MATCH, Suffixes

MAX_SALTS = 64
"""Salts whose answers are kept: those that were asked for last."""
PROMPT_TAIL_TOKENS = 16
"""Tokens of a prompt's end that are kept with its answer: what is asked in the same words begins the same way."""


class EarlierAnswers:
    """Keeps up to so many tokens of each salt, at some 16 bytes each."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._texts: dict[
            str, list[_Text]
        ] = {}  # by salt, the newer text first; the salt that was used last at the end

    def keep(self, salt: str, tokens: Sequence[int], prompt_tokens: int) -> None:
        """Keeps the answer behind so many tokens of a prompt."""
        answer = tokens[max(0, prompt_tokens - PROMPT_TAIL_TOKENS) :][-self._half :]
        texts = self._texts.pop(salt, None) or [_Text(self._half)]
        if len(texts[0].tokens) + len(answer) > self._half:
            texts = [_Text(self._half), texts[0]]
        texts[0].tokens.extend(answer)
        self._texts[salt] = texts
        if len(self._texts) > MAX_SALTS:
            del self._texts[next(iter(self._texts))]

    def guess(self, salt: str, tokens: list[int], most: int, longer: int) -> Proposal:
        """Returns what followed the longest end of `tokens` in a salt's answers; nothing unless it is `longer`."""
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
        return Proposal(found.tokens[best.place : best.place + most].tolist(), best.length)

    def counts(self) -> dict[str, int]:
        return {salt: sum(len(text.tokens) for text in texts) for salt, texts in self._texts.items()}


class _Text:
    """Holds answers, one behind the other, and where their tokens stand."""

    __slots__ = ("suffixes", "tokens")

    def __init__(self, most: int) -> None:
        self.tokens: array[int] = array("I")
        self.suffixes = Suffixes(most)
