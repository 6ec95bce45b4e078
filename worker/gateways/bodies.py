"""Collects the prompts of taken jobs whose ids come in pieces over their gateways' connections.

Pure: time is an argument. A worker requests each piece, and repeats the request, so that gateways keep no state and
lost messages are repeated. Few prompts are requested at once, which bounds the memory.
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

MAX_WAITING_JOBS = 64  # jobs waiting for their prompts; beyond it no more jobs are taken
PROMPTS_PER_GATEWAY = 4  # requested from one gateway at once; others wait for their turn
REPEAT_S = 0.2  # until a missing piece is asked for again
GIVE_UP_S = 3.0  # without a requested piece
REASON_NO_BODY = "no_body"  # the ids of a prompt did not come, or differ from the job's digest


class MissingPrompt(NamedTuple):
    """A job whose prompt did not come."""

    job: AnyJob
    why: str


class _Awaited:
    __slots__ = ("asked", "digest", "heard", "ids", "job")

    def __init__(self, job: AnyJob) -> None:
        self.job = job
        self.ids = unpacked(b"")  # received so far
        self.digest = hashlib.sha256()  # of `ids`
        self.asked: float | None = None  # local time (s) of the last question for the next piece
        self.heard: float | None = None  # local time (s) of the last piece, or of the first question


class PromptBodies:
    """Jobs without their prompts' ids, in the order in which they were taken."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[str, int], _Awaited] = {}  # by request and attempt

    def __len__(self) -> int:
        return len(self._awaited)

    def add(self, job: AnyJob) -> None:
        assert job.body is not None
        self._awaited[job.request, job.attempt] = _Awaited(job)

    def take(self, piece: Piece, now: float) -> AnyJob | MissingPrompt | None:
        """Takes a piece; returns the job when its ids are complete, `MissingPrompt` if they are wrong.

        Repeated and unknown pieces are dropped.
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
        """Returns the jobs with a due request, each with the index of the next id, and records the requests."""
        found = []
        asked = Counter[str]()  # by gateway, so that a silent gateway delays no other
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
        """Drops and returns jobs whose pieces have not come for long."""
        missing = [
            MissingPrompt(one.job, f"the prompt did not come within {GIVE_UP_S:g} s")
            for one in self._awaited.values()
            if one.heard is not None and now - one.heard >= GIVE_UP_S
        ]
        for each in missing:
            self._drop(each.job)
        return missing

    def forget(self, lives: Callable[[AttemptKey], bool]) -> None:
        for one in list(self._awaited.values()):
            if not any(map(lives, one.job.attempts())):
                self._drop(one.job)

    def leave(self) -> list[MissingPrompt]:
        """Drops and returns all jobs, because the worker leaves."""
        missing = [MissingPrompt(one.job, "the worker leaves") for one in self._awaited.values()]
        self._awaited.clear()
        return missing

    def _drop(self, job: AnyJob) -> None:
        del self._awaited[job.request, job.attempt]
