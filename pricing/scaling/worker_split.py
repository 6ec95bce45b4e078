"""Divides a number of workers into prefill and decode workers, so that neither waits for the other. Pure."""

from pricing.step_costs.steps import StepCosts

TYPICAL_PROMPT_TOKENS, TYPICAL_ANSWER_TOKENS = 1024, 256
"""Shape of the request for which the split is made: a turn of a chat behind its history."""
TYPICAL_CONTEXT_TOKENS = TYPICAL_PROMPT_TOKENS + TYPICAL_ANSWER_TOKENS // 2  # of a sequence, halfway through its answer
MAX_TYPICAL_SEQUENCES = 64  # most sequences that decode on a worker at once
PREFILL_STEP_TOKENS = 8192  # tokens of prompts for which a prefill worker reads the weights once


def typical_sequences(room_bytes: float, token_bytes: float) -> int:
    """Returns how many sequences of typical length decode at once where `room_bytes` are left for KV."""
    fitting = int(room_bytes / (token_bytes * TYPICAL_CONTEXT_TOKENS)) if token_bytes else MAX_TYPICAL_SEQUENCES
    return max(1, min(fitting, MAX_TYPICAL_SEQUENCES))


def split(workers: int, costs: StepCosts, sequences: int) -> tuple[int, int]:
    """Returns the numbers of prefill and of decode workers among `workers`, at least one each.

    A request takes `prompt` seconds of a prefill worker, and `answer` seconds of a decode worker in whose steps
    `sequences` sequences decode. The split with most requests per second minimizes the larger of prompt / prefill and
    answer / decode. Of equal splits, the one with more decode workers wins: these can compute prompts, too.
    """
    assert workers >= 2, "a single worker serves whole requests"
    prompt = costs.prompt_seconds(PREFILL_STEP_TOKENS, 0.0) * TYPICAL_PROMPT_TOKENS / PREFILL_STEP_TOKENS
    step = costs.decode_seconds(sequences, sequences * TYPICAL_CONTEXT_TOKENS)
    answer = TYPICAL_ANSWER_TOKENS * step / sequences
    prefill = min(range(1, workers), key=lambda count: max(prompt / count, answer / (workers - count)))
    return prefill, workers - prefill
