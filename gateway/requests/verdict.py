"""Judges whether a new request can keep its objective: it goes, waits for a better moment, or is refused. Pure.

A request is refused as soon as no moment within its objective can be good enough, so that its client can go elsewhere
and no other request is slowed for a late answer:
- its first token would be late;
- it wants tokens faster than any step so far;
- its tokens would come too slowly even if nothing else decoded on its worker.
If tokens would come too slowly because of other sequences, for itself or for them, it waits: as long as its first token
may take, or `MAX_WAIT_S`. Then it is refused if its own objective is at risk, and goes if only others' are. A refusal
names the missed objective.
"""

from enum import Enum
from typing import NamedTuple

from contracts.slo import Objective

TPOT_SAFETY_FACTOR = 1.2  # safety factor of the expected time per token: sequences grow, and other requests come
MAX_WAIT_S = 30.0  # longest wait for a better moment, in seconds, of a request without an objective for its first token
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 60.0
"""Bounds of the pause that a refused client is told, in seconds; clients do not wait for longer."""
LEARNING_PAUSE_S = 1.0  # pause in seconds if the worker alone is too slow: by then it has measured its steps again


class EntryDecision(Enum):
    GOES = "goes"
    WAITS = "waits"
    REFUSED = "refused"


class EntryVerdict(NamedTuple):
    """Decision, its reason in words, and the seconds after which a refused client may come back."""

    answer: EntryDecision
    why: str = ""
    retry_after: float = 0.0


class Expected(NamedTuple):
    """Predictions for a request's best route, in seconds; None: unknown."""

    ttft: float | None = None  # from now to the first token
    tpot: float | None = None  # per token on the decode worker, including this request
    fastest: float = 0.0  # per token of the fastest step of any worker so far; 0: some worker has run none
    alone: bool = False  # nothing decodes on the decode worker now
    sure: float = 1.0  # margin: most first tokens come within this many times `ttft`


ENTER_NOW = EntryVerdict(EntryDecision.GOES)


def judge(expected: Expected, wanted: Objective, waited: float, others: float | None = None) -> EntryVerdict:
    """Judges a request by predictions; without predictions it goes.

    `waited`: seconds since its arrival. `others`: least seconds per token promised to a sequence on the decode worker.
    """
    of_tokens = _of_tokens(expected, wanted, waited, others)
    unknown = expected.ttft is None and of_tokens.answer is EntryDecision.GOES
    if of_tokens.answer is EntryDecision.REFUSED or wanted.ttft_ms is None or unknown:
        return of_tokens
    limit, least = wanted.ttft_ms / 1000, expected.ttft or 0.0
    ttft = expected.sure * least
    if ttft <= limit - waited:
        return of_tokens
    came = f" after {waited:.2f} s of waiting" if waited >= 0.01 else ""
    why = f"the first token is expected in {least:.2f} s{came}, and wanted within {limit:g} s"
    if of_tokens.answer is EntryDecision.WAITS and ttft <= limit:  # it is late only because it waited
        why = f"{of_tokens.why}; {waited:.2f} s of waiting have not helped, and the first is wanted within {limit:g} s"
    return EntryVerdict(EntryDecision.REFUSED, why, pause(ttft - (limit - waited)))


def _of_tokens(expected: Expected, wanted: Objective, waited: float, others: float | None) -> EntryVerdict:
    tpot, fastest, patient = expected.tpot, expected.fastest, waited < MAX_WAIT_S
    limit = None if wanted.tpot_ms is None else wanted.tpot_ms / 1000
    if limit is not None and limit < fastest:
        why = f"a token every {1000 * fastest:.3g} ms is the fastest that was ever seen, and a token is wanted every "
        return EntryVerdict(EntryDecision.REFUSED, f"{why}{1000 * limit:g} ms", LEARNING_PAUSE_S)
    if tpot is None:
        return ENTER_NOW
    if limit is not None and (tpot if expected.alone else TPOT_SAFETY_FACTOR * tpot) > limit:
        why = f"a token is expected every {1000 * tpot:.3g} ms, and wanted every {1000 * limit:g} ms"
        if expected.alone:
            return EntryVerdict(EntryDecision.REFUSED, f"{why}; nothing else decodes there", LEARNING_PAUSE_S)
        if patient or wanted.ttft_ms is not None:
            return EntryVerdict(EntryDecision.WAITS, why)
        return EntryVerdict(
            EntryDecision.REFUSED, f"{why}; {waited:.0f} s of waiting have not helped", LEARNING_PAUSE_S
        )
    if others is not None and tpot > others and patient:
        why = f"it would slow tokens down to {1000 * tpot:.3g} ms, and other answers are promised a token every "
        return EntryVerdict(EntryDecision.WAITS, f"{why}{1000 * others:g} ms")
    return ENTER_NOW


def pause(seconds: float) -> float:
    """Returns the retry pause of a refused client, if a worker will be free after `seconds`."""
    return min(MAX_PAUSE_S, max(MIN_PAUSE_S, seconds))
