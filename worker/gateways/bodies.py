"""Collects the prompts of jobs that were taken and whose ids come over their gateways' connections, a piece at a time.

Pure: time is an argument. A worker asks for each piece, and again when none comes, so that nothing has to be kept at
the gateway, nothing waits here for its job, and whatever is lost is repeated. Few are asked for at once: what these
bring is all the memory that it takes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from contracts.ids import AttemptKey
from contracts.messages.gateway import Piece
from contracts.messages.job import AnyJob
from contracts.messages.packed_ids import unpacked

MAX_WAITING_JOBS = 64  # jobs that may wait for their prompts; a worker that has so many takes no others
PROMPTS_PER_GATEWAY = 4  # prompts that one gateway is asked for at the same time; others wait until it is their turn
REPEAT_S = 0.2  # s until a piece that has not come is asked for again
GIVE_UP_S = 3.0  # s without a piece, though asked for
REASON_NO_BODY = "no_body"
"""An attempt fails for this reason when the ids of its prompt do not come, or are others than its job says."""


class MissingPrompt(NamedTuple):
    """Names a job whose prompt will not come, and says why."""

    job: AnyJob
    why: str


class _Awaited:
    __slots__ = ("asked", "digest", "heard", "ids", "job")

    def __init__(self, job: AnyJob) -> None:
        self.job = job
        self.ids: list[int] = []  # that have come
        self.digest = hashlib.sha256()  # of those
        self.asked: float | None = None  # when its next piece was asked for last, local time, s
        self.heard: float | None = None  # when a piece came last, or it was asked for first, local time, s


class PromptBodies:
    """Holds the jobs of which only the head has come, in the order in which they were taken."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, int], _Awaited] = {}  # by request and attempt

    def __len__(self) -> int:
        return len(self._awaited)

    def add(self, job: AnyJob) -> None:
        """Awaits the prompt of a job whose `body` says what is to come."""
        assert job.body is not None
        self._awaited[job.request, job.attempt] = _Awaited(job)

    def take(self, piece: Piece, now: float) -> AnyJob | MissingPrompt | None:
        """Takes ids; returns the job once it has all of them, or that it never will.

        What nobody waits for, and what comes twice, is dropped.
        """
        one = self._awaited.get((piece.request, piece.attempt))
        if one is None or piece.first != len(one.ids) or not piece.ids:
            return None
        body = one.job.body
        assert body is not None
        one.ids += unpacked(piece.ids)
        one.digest.update(piece.ids)
        one.asked, one.heard = None, now
        if len(one.ids) < body.tokens:
            return None
        self._drop(one.job)
        if len(one.ids) > body.tokens or one.digest.digest() != body.digest:
            return MissingPrompt(one.job, "the prompt that came is another one than the job says")
        return structs.replace(one.job, prompt=structs.replace(one.job.prompt, token_ids=one.ids), body=None)

    def due(self, now: float) -> list[tuple[AnyJob, int]]:
        """Returns the jobs of which to ask for the ids from an index on; that it does so is noted."""
        found = []
        asked = Counter[str]()  # by gateway, whose silence concerns no other
        for one in self._awaited.values():
            asked[one.job.sender] += 1
            if asked[one.job.sender] > PROMPTS_PER_GATEWAY:
                continue
            if one.asked is None or now - one.asked >= REPEAT_S:
                one.asked = now
                one.heard = now if one.heard is None else one.heard
                found.append((one.job, len(one.ids)))
        return found

    def silent(self, now: float) -> list[MissingPrompt]:
        """Gives up, and returns, those of which nothing has come for long."""
        missing = [
            MissingPrompt(one.job, f"the prompt did not come within {GIVE_UP_S:g} s")
            for one in self._awaited.values()
            if one.heard is not None and now - one.heard >= GIVE_UP_S
        ]
        for each in missing:
            self._drop(each.job)
        return missing

    def forget(self, lives: Callable[[AttemptKey], bool]) -> None:
        """Drops the jobs that nobody wants any more."""
        for one in list(self._awaited.values()):
            if not any(map(lives, one.job.attempts())):
                self._drop(one.job)

    def leave(self) -> list[MissingPrompt]:
        """Gives everything up: the worker leaves."""
        missing = [MissingPrompt(one.job, "the worker leaves") for one in self._awaited.values()]
        self._awaited.clear()
        return missing

    def _drop(self, job: AnyJob) -> None:
        del self._awaited[job.request, job.attempt]
