"""Appends a step's sampled tokens to their sequences, which then continue, start branches, park, or end."""

from collections.abc import Iterable

from msgspec import structs

from contracts.scores import Scores
from engine.schedule.lifecycle import Lifecycle, released
from engine.schedule.progress import SequenceProgress
from engine.schedule.sequence import Sequence, SequenceState


class Acceptance:
    """Appends sampled tokens, and moves each sequence to its next state."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.output_tokens = 0  # since the start of the worker

    def accept(
        self, sequence: Sequence, sampled: list[int], scores: list[Scores] | None, now: float
    ) -> list[SequenceProgress]:
        """Appends the tokens sampled for a sequence; a sequence with branches starts them.

        `scores`, if requested, has one entry for each sample.
        """
        assert sampled, "a row that was sampled has a token, or has failed"
        if sequence.branches:
            progress = self._accept_first(sequence, sampled, scores or [None] * len(sampled), now)
        else:
            progress = [self._take(sequence, sampled, scores[0] if scores else None, now)]
            if progress[0].finish:
                self._lifecycle.end(sequence)
            elif sequence.hand_off:
                self._lifecycle.park(sequence)
        prompt_scores = sequence.take_prompt_scores() if sequence.prompt_scores else None
        if prompt_scores is not None and progress:
            progress[0] = structs.replace(progress[0], prompt_scores=prompt_scores)
        return progress

    def pool(self, sequence: Sequence, vector: bytes, now: float) -> list[SequenceProgress]:
        """Ends a sequence whose whole text was computed, with the result of its states."""
        sequence.first_token_at = now
        self._lifecycle.end(sequence)
        return [SequenceProgress(sequence, 0, [], "stop", state=vector)]

    def _accept_first(
        self, sequence: Sequence, sampled: list[int], scores: Iterable[Scores | None], now: float
    ) -> list[SequenceProgress]:
        members = [sequence, *sequence.branches]
        both = zip(members, sampled, scores, strict=True)
        taken = [self._take(each, [token], own, now) for each, token, own in both if not released(each)]
        going = [progress.sequence for progress in taken if not progress.finish]
        branches = [each for each in going if each is not sequence]
        for each in sequence.branches:
            if each.state is not SequenceState.ENDED and (sequence.hand_off or each not in branches):
                self._lifecycle.end(each)
        if sequence.hand_off:
            sequence.branches = []
            if going:
                self._lifecycle.park(sequence)
            else:
                self._lifecycle.end(sequence)
        else:
            self._lifecycle.begin_branches(sequence, branches)
            if sequence not in going:
                self._lifecycle.end(sequence)
        return taken

    def _take(self, sequence: Sequence, sampled: list[int], scores: Scores | None, now: float) -> SequenceProgress:
        taken, finish = sequence.until_end(sampled)
        before = len(sequence.tokens)
        length = before + len(taken)
        sequence.tokens.extend(taken)
        self.output_tokens += len(taken)
        sequence.computed = min(sequence.computed, length - 1)  # draft tokens after the end do not count
        sequence.first_token_at = sequence.first_token_at or now
        if scores is not None:
            scores = scores.part(0, len(taken))
        return SequenceProgress(sequence, before - sequence.prompt_tokens, taken, finish, scores=scores)

    def fail(self, sequence: Sequence, reason: str) -> list[SequenceProgress]:
        """Ends a sequence for which no token can be drawn, and its waiting branches."""
        members = [each for each in (*sequence.branches, sequence) if not released(each)]
        for branch in sequence.branches:
            self._lifecycle.release(branch)
        if sequence.state is not SequenceState.ENDED:
            self._lifecycle.end(sequence)
        return [SequenceProgress(each, each.emitted, [], failed=reason) for each in members]
