"""Scores a step's tokens if log-probabilities are requested: drawn tokens, and tokens of prompts.

Scores of drawn tokens are of the model's own logits, or of the distribution after adjustments, temperature and filters
(`--logprobs-mode`, as in vLLM). Scores of prompts are always of the model's own logits, computed from a few rows of
logits at a time, whatever the prompt's length.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contracts.scores import Scores
from engine.backends.adjuster import is_adjusted
from engine.backends.reference.sampling.processed import processed
from engine.backends.scorer import Scorer, finite, scores_of
from engine.device import to_device
from engine.plan import PromptRows, Work
from engine.speculation.verify.verification import row_count

LOGIT_ROWS_AT_ONCE = 64
"""Maximum rows of logits in memory for scoring prompts, besides the step's own logits."""
Words = NDArray[np.int32]


class ScoredDraws(NamedTuple):
    """The draws of a step that are scored, with their logits."""

    top: int
    draws: Tensor  # int64 [scored draws], indices among all draws of the step
    rows: Tensor | None  # int64 [scored draws], of `logits`; None: one row each
    logits: Tensor | None  # None: the logits used for drawing


class StepScoring:
    """Scores the tokens of steps by the operators of one backend."""

    def __init__(self, scorer: Scorer, vocab: int, after_filters: bool) -> None:
        """`after_filters`: scores are of the distribution used for drawing."""
        self._scorer = scorer
        self._vocab = vocab
        self._after_filters = after_filters

    # on the device ----------------------------------------------------------------------------------------------------

    def begin(self, logits: Tensor, works: Sequence[Work]) -> ScoredDraws | None:
        """Returns the draws to score of a step whose `logits` `[works, vocab]` are not adjusted yet; None: none.

        Rows that adjustments will overwrite are copied.
        """
        wanted = [(row, work) for row, work in enumerate(works) if _top(work) is not None]
        if not wanted:
            return None
        top = max(_top(work) or 0 for _, work in wanted)
        begins = np.cumsum([0, *(len(work.samples) for work in works)])
        rows = np.concatenate([np.full(len(work.samples), row) for row, work in wanted])
        draws = np.concatenate([np.arange(begins[row], begins[row + 1]) for row, _ in wanted])
        count = len(rows)
        both = np.zeros((2, count + count % 2), dtype=np.int64)  # rows begin where a kernel finds 16 bytes at once
        both[:, :count] = draws, rows
        on_device = to_device(both, logits.device)
        places_on_device, rows_on_device = on_device[0, :count], on_device[1, :count]
        top = min(top, self._vocab)
        if self._after_filters:
            return ScoredDraws(top, places_on_device, rows_on_device, None)
        if logits.dtype == torch.float32 and any(map(is_adjusted, works)):
            return ScoredDraws(top, places_on_device, None, logits[rows_on_device])
        return ScoredDraws(top, places_on_device, rows_on_device, logits)

    def drawn(self, scored: ScoredDraws, logits: Tensor, works: Sequence[Work], tokens: Tensor) -> Tensor:
        """Returns the score words, as in `engine.backends.scorer`, of the `scored` draws among `tokens`, on the device.

        `logits` `[works, vocab]` are the logits used for drawing `tokens`.
        """
        drawn_tokens = tokens[scored.draws]
        if scored.logits is not None:
            return self._scorer.score(scored.logits, scored.rows, drawn_tokens, scored.top)
        assert scored.rows is not None
        draws = [work.sampling for work in works if _top(work) is not None for _ in work.samples]
        words = []
        for begin in range(0, len(drawn_tokens), LOGIT_ROWS_AT_ONCE):
            some = slice(begin, begin + LOGIT_ROWS_AT_ONCE)
            samplings = [each for each in draws[some] if each is not None]
            filtered = processed(logits[scored.rows[some]], samplings, drawn_tokens[some])
            words.append(self._scorer.score(filtered, None, drawn_tokens[some], scored.top))
        return torch.cat(words)

    def prompts(self, hidden: Tensor, works: Sequence[Work], logits: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the score words of prompts' tokens, from the states `[rows, hidden]` before them.

        `logits` computes a row of logits from each state.
        """
        prompt_rows = _prompt_rows(works)
        top = min(max(each.top for each in prompt_rows), self._vocab)
        targets = to_device(np.concatenate([np.array(each.targets) for each in prompt_rows]), hidden.device)
        begins = range(0, len(targets), LOGIT_ROWS_AT_ONCE)
        parts = [(logits(hidden[at : at + LOGIT_ROWS_AT_ONCE]), targets[at : at + LOGIT_ROWS_AT_ONCE]) for at in begins]
        return torch.cat([self._scorer.score(row_logits, None, tokens, top) for row_logits, tokens in parts])

    # on the host ------------------------------------------------------------------------------------------------------

    def of_draws(self, words: Words, works: Sequence[Work], rows: Mapping[int, list[int]]) -> dict[int, list[Scores]]:
        """Returns the scores of drawn tokens by index of their work, one for each sample.

        A work with draft tokens has the scores of its valid `rows`.
        """
        scores, at = {}, 0
        for index, work in enumerate(works):
            top = _top(work)
            if top is not None:
                work_words = words[at : at + row_count(work) * len(work.samples)]
                at += len(work_words)
                parts = [work_words[rows[index]]] if index in rows else np.split(work_words, len(work_words))
                scores[index] = [scores_of(part, min(top, self._vocab)) for part in parts]
        return scores

    def of_prompts(self, words: Words, works: Sequence[Work]) -> tuple[dict[int, Scores], list[int]]:
        """Returns the scores of prompts' tokens by index of their work, and the works whose logits are not finite."""
        scores, failed, at = {}, [], 0
        for index, work in enumerate(works):
            if work.prompt_rows is not None:
                work_words = words[at : at + len(work.prompt_rows.targets)]
                at += len(work_words)
                if finite(work_words):
                    scores[index] = scores_of(work_words, min(work.prompt_rows.top, self._vocab))
                else:
                    failed.append(index)
        return scores, failed


def _top(work: Work) -> int | None:
    return work.sampling.logprobs if work.sampling is not None else None


def _prompt_rows(works: Sequence[Work]) -> list[PromptRows]:
    return [work.prompt_rows for work in works if work.prompt_rows is not None]
