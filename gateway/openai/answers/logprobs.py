"""Shapes log-probabilities as OpenAI and vLLM do. Long lists are shaped in turns, between which other requests run.

Each token's entry becomes JSON at once: half a million numbers of a prompt take less memory, and less time of the final
encoder, as bytes.
"""

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from contracts.scores import Scores, TokenScore
from gateway.text.token_bytes import TokenBytes

MIN_LOGPROB = -9999.0  # lower values become this, as in vLLM: JSON has no infinity
ALTERNATIVES_PER_TURN = 256  # about half a millisecond of work

encode = msgspec.json.Encoder().encode


class TokenNames:
    """Names tokens by their text, or as `token_id:…` if the client asks for that."""

    def __init__(self, tokens: TokenBytes, as_ids: bool) -> None:
        self.tokens = tokens
        self._as_ids = as_ids

    def of(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self.tokens.name(token)


class ScoredTokens(NamedTuple):
    """Tokens and their scores, of equal number."""

    token_ids: Sequence[int]
    scores: Scores | None  # None where there are no tokens

    async def in_turns(self) -> AsyncIterator[tuple[int, TokenScore]]:
        """Yields each token with its score, and lets other requests run in between."""
        if self.scores is None:
            return
        size = max(1, ALTERNATIVES_PER_TURN // (self.scores.top + 1))
        for begin in range(0, len(self.token_ids), size):
            if begin:
                await asyncio.sleep(0)
            tokens = self.token_ids[begin : begin + size]
            for one in zip(tokens, self.scores.part(begin, begin + len(tokens)), strict=True):
                yield one


async def chat_logprobs(scored: ScoredTokens, top: int, names: TokenNames) -> dict[str, Any]:
    """Returns the object `logprobs` of a chat's choice, with `top` alternatives for each token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": names.of(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(names.tokens.of(token))}

    content = []
    async for token, score in scored.in_turns():
        alternatives = [entry(*one) for one in score.top[:top]]
        content.append(Raw(encode(entry(token, score.logprob) | {"top_logprobs": alternatives})))
    return {"content": content, "refusal": None}


class CompletionLogprobsEncoder:
    """Makes the `logprobs` objects of a completion's chunks. Text offsets continue from chunk to chunk."""

    def __init__(self, top: int, names: TokenNames, has_text: Callable[[int], bool]) -> None:
        self._top = top
        self._names = names
        self._has_text = has_text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0  # characters of the text before the next token

    async def of(self, scored: ScoredTokens, first: int | None = None) -> dict[str, Any]:
        """Returns the object for the next tokens. `first` is a prompt's first token, which has no score."""
        tokens: list[str] = []
        logprobs: list[float | None] = []
        alternatives: list[Raw | None] = []
        offsets: list[int] = []
        if first is not None:
            tokens, logprobs, alternatives = [self._names.of(first)], [None], [None]
            offsets.append(self._passed(first))
        async for token, score in scored.in_turns():
            name = self._names.of(token)
            top = {name: max(score.logprob, MIN_LOGPROB)}
            for other, logprob in score.top[: self._top]:
                top.setdefault(self._names.of(other), max(logprob, MIN_LOGPROB))
            tokens.append(name)
            logprobs.append(top[name])
            alternatives.append(Raw(encode(top)))
            offsets.append(self._passed(token))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": alternatives, "text_offset": offsets}

    def _passed(self, token: int) -> int:
        offset = self._offset
        if self._has_text(token):
            self._offset += len(self._decoder.decode(self._names.tokens.of(token)))
        return offset


async def prompt_logprobs(scored: ScoredTokens, top: int, names: TokenNames) -> list[Raw | None]:
    """Returns vLLM's `prompt_logprobs`. The first entry is None, for the prompt's first token, which has no score."""
    found: list[Raw | None] = [None]
    async for token, score in scored.in_turns():
        told = {token: _entry(token, score.logprob, score.rank, names)}
        for rank, (other, logprob) in enumerate(score.top[:top], 1):
            told.setdefault(other, _entry(other, logprob, rank, names))
        found.append(Raw(encode(told)))
    return found


def _entry(token: int, logprob: float, rank: int, names: TokenNames) -> dict[str, Any]:
    return {"logprob": max(logprob, MIN_LOGPROB), "rank": rank, "decoded_token": names.of(token)}
