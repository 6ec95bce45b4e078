"""Judges whether a request that comes now would keep its objective: it goes, waits for a better moment, or is refused.

A request is refused as soon as no moment within its objective is good enough, by what is expected of the best route:
its client can go elsewhere, or come back when the backlog is shorter, and no other request is slowed down for an answer
that would be too late. So it is where its first token would be late, where it wants tokens faster than any step has
given them, and where tokens come too slowly although nothing else decodes there. Where they would come too slowly
because of others, for itself or for those that run there, a later moment may be better: it waits as long as its first
token may, or `MAX_WAIT_S`. Then it is refused if it has waited for its own sake; if for the sake of others, it goes. A
refusal names the objective that is missed. Pure.
"""

from enum import Enum
from typing import NamedTuple

from contracts.slo import Objective

TPOT_SAFETY_FACTOR = 1.2
"""So many times as long may tokens take as is expected, since texts grow and others come."""
MAX_WAIT_S = 30.0
"""Seconds that a request waits for a better moment at most, where it has no objective for its first token."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 60.0
"""Seconds after which it is worth to come back, at least and at most; clients do not wait for longer."""
LEARNING_PAUSE_S = 1.0
"""Seconds after which it is worth to come back where a worker is too slow by itself: it measures that again by then."""


class EntryDecision(Enum):
    """Says what becomes of a request."""

    GOES = "goes"
    WAITS = "waits"
    REFUSED = "refused"


class EntryVerdict(NamedTuple):
    """Holds the answer, why, in words, and after how many seconds a refused client may come back."""

    answer: EntryDecision
    why: str = ""
    retry_after: float = 0.0


class Expected(NamedTuple):
    """Holds what is expected of a request's best route, in seconds; None where it is not known."""

    ttft: float | None = None  # from now to its first token
    tpot: float | None = None  # for each token of every sequence there, with it
    fastest: float = 0.0  # for each token of the fastest step that the workers have shown; 0: they have shown none
    alone: bool = False  # nothing decodes there now
    sure: float = 1.0  # how many times as long first tokens take as is expected, nearly always: no more is promised


ENTER_NOW = EntryVerdict(EntryDecision.GOES)


def judge(expected: Expected, wanted: Objective, waited: float, others: float | None = None) -> EntryVerdict:
    """Judges a request by what is expected; where nothing is known, it goes.

    `waited`: seconds since it came. `others`: seconds for each token that the strictest sequence there was promised.
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
    if of_tokens.answer is EntryDecision.WAITS and ttft <= limit:  # only what it waited for has made it late
        why = f"{of_tokens.why}; {waited:.2f} s of waiting have not helped, and the first is wanted within {limit:g} s"
    return EntryVerdict(EntryDecision.REFUSED, why, pause(ttft - (limit - waited)))


def _of_tokens(expected: Expected, wanted: Objective, waited: float, others: float | None) -> EntryVerdict:
    """Judges a request by how fast tokens would come: its own, and those of the sequences beside it."""
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
    """Returns after how many seconds it is worth to come back, if something will be free after `seconds`."""
    return min(MAX_PAUSE_S, max(MIN_PAUSE_S, seconds))
