"""The result of a step for one sequence, with stable words for failures."""

from msgspec import Struct

from contracts.messages.gateway import REASON_GRAMMAR_FAILED, REASON_NOTHING_ALLOWED
from contracts.messages.sampling import Finish
from contracts.scores import Scores
from engine.schedule.sequence import Sequence

NON_FINITE = "non-finite logits"
GRAMMAR_PREFIX = "grammar: "
CONSTRAINTS_PREFIX = "constrained output: "  # impossible on this worker, whatever the grammar
NONE_LEFT = "every token is forbidden: by allowed_token_ids, bad_words, min_tokens or the grammar together"


def reason_of(failed: str) -> str:
    if failed == NONE_LEFT:
        return REASON_NOTHING_ALLOWED
    return REASON_GRAMMAR_FAILED if failed.startswith(GRAMMAR_PREFIX) else "engine"


def may_do_better(failed: str) -> bool:
    """Returns whether another worker may succeed after this value of `SequenceProgress.failed`."""
    return failed.startswith(CONSTRAINTS_PREFIX)


class SequenceProgress(Struct, frozen=True):
    """The result of a step for one sequence."""

    sequence: Sequence
    index: int  # the output index of the first of `tokens`
    tokens: list[int]
    finish: Finish | None = None  # None: the sequence goes on, or has failed
    failed: str = ""  # reason; empty: it has not failed
    scores: Scores | None = None  # of `tokens`, where sampling asks for them
    prompt_scores: Scores | None = None  # of the prompt's tokens except the first; with the first token of one sample
    state: bytes = b""  # hidden state of the token before `tokens`, or the text's result: see `Work.returns_state`
