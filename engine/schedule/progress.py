"""Says what a step did for one sequence, and in stable words why it failed."""

from msgspec import Struct

from contracts.messages.gateway import REASON_GRAMMAR_FAILED, REASON_NOTHING_ALLOWED
from contracts.messages.sampling import Finish
from contracts.scores import Scores
from engine.schedule.sequence import Sequence

NON_FINITE = "non-finite logits"
GRAMMAR_PREFIX = "grammar: "
CONSTRAINTS_PREFIX = "constrained output: "  # what this worker cannot do, whatever the grammar is
NONE_LEFT = "every token is forbidden: by allowed_token_ids, bad_words, min_tokens or the grammar together"


def reason_of(failed: str) -> str:
    """Returns the stable word for what `SequenceProgress.failed` says."""
    if failed == NONE_LEFT:
        return REASON_NOTHING_ALLOWED
    return REASON_GRAMMAR_FAILED if failed.startswith(GRAMMAR_PREFIX) else "engine"


def may_do_better(failed: str) -> bool:
    """Tells whether another worker may do what `SequenceProgress.failed` says that this one could not."""
    return failed.startswith(CONSTRAINTS_PREFIX)


class SequenceProgress(Struct, frozen=True):
    """Says what a step did for one sequence."""

    sequence: Sequence
    index: int  # the output index of the first of `tokens`
    tokens: list[int]
    finish: Finish | None = None  # how the sequence has ended; None: it goes on, or has failed
    failed: str = ""  # why it has failed; empty: it has not
    scores: Scores | None = None  # of `tokens`, if the sequence's sampling asks for them
    prompt_scores: Scores | None = None  # of the prompt's tokens but the first: with the first token of one sample
    state: bytes = b""  # of the token before `tokens`, where it is told: see `Work.tells_state`
