"""What samples of a request were told, and how two such answers differ."""

from dataclasses import dataclass, field
from functools import partial

from contracts.messages.sampling import Finish
from contracts.scores import TokenScore
from engine.schedule.progress import SequenceProgress


@dataclass
class Answer:
    """What one sample was told, over all attempts."""

    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    finish: Finish | None = None
    failed: str = ""

    def behind(self, emitted: int) -> "Answer":
        """Returns what is left to tell when so many tokens were told by an earlier attempt."""
        prompt_scores = [] if emitted else self.prompt_scores
        return Answer(self.tokens[emitted:], self.scores[emitted:], prompt_scores, self.finish, self.failed)

    def take(self, progress: SequenceProgress, prompt_tokens: int, base: int) -> None:
        """Adds what a step gave. Raises AssertionError if tokens are left out or told twice."""
        assert progress.failed or progress.index == base + len(self.tokens), (progress.index, base, len(self.tokens))
        self.tokens += progress.tokens
        self.scores += progress.scores or []
        if progress.prompt_scores is not None:
            assert not self.prompt_scores and len(progress.prompt_scores) == prompt_tokens - 1
            self.prompt_scores = list(progress.prompt_scores)
        self.finish, self.failed = progress.finish, progress.failed


def difference(answer: Answer, expected: Answer, error: float) -> str:
    """Says what an answer has otherwise than it should; empty: nothing."""
    if (answer.tokens, answer.finish, answer.failed) != (expected.tokens, expected.finish, expected.failed):
        ends = f"{answer.finish} {answer.failed!r} instead of {expected.finish} {expected.failed!r}"
        return f"{answer.tokens} instead of {expected.tokens}, {ends}"
    for name, own, theirs in (
        ("scores", answer.scores, expected.scores),
        ("prompt's scores", answer.prompt_scores, expected.prompt_scores),
    ):
        if len(own) != len(theirs):
            return f"{len(own)} {name} instead of {len(theirs)}"
        if not all(map(partial(alike, error=error), own, theirs)):
            return f"other {name}"
    return ""


def alike(one: TokenScore, other: TokenScore, error: float) -> bool:
    """Tells whether scores are equal but for rounding; tokens that are about equally likely may change places."""
    values = [abs(own - theirs) < error for (_, own), (_, theirs) in zip(one.top, other.top, strict=True)]
    return abs(one.logprob - other.logprob) < error and abs(one.rank - other.rank) <= 1 and all(values)
