"""Chooses the best answers, where more are made than the client wants."""

from collections.abc import Sequence

from gateway.openai.answers.replies import Answer


def best(answers: Sequence[Answer], made: int, wanted: int) -> list[tuple[int, Answer]]:
    """Returns the `wanted` best of each prompt's `made` answers, and where they were among all.

    The best are those whose tokens were the likeliest on average, the best of them first.
    """
    if made == wanted:
        return list(enumerate(answers))
    chosen: list[tuple[int, Answer]] = []
    for first in range(0, len(answers), made):
        of_prompt = list(enumerate(answers))[first : first + made]
        chosen += sorted(of_prompt, key=lambda item: -_mean_logprob(item[1]))[:wanted]
    return chosen


def _mean_logprob(answer: Answer) -> float:
    assert answer.scores is not None, "whoever chooses asks for scores"
    logprobs = [score.logprob for score in answer.scores]
    return sum(logprobs) / len(logprobs)
