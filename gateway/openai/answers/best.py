"""Chooses the best answers if more are sampled than the client wants (`best_of`)."""

from collections.abc import Sequence

from gateway.openai.answers.replies import Answer


def best(answers: Sequence[Answer], samples: int, choices: int) -> list[tuple[int, Answer]]:
    """Returns, for each prompt, the `choices` best of its `samples` answers, each with its index among all answers.

    The best answers have the highest mean log-probability of a token. The best comes first.
    """
    if samples == choices:
        return list(enumerate(answers))
    chosen: list[tuple[int, Answer]] = []
    for first in range(0, len(answers), samples):
        of_prompt = list(enumerate(answers))[first : first + samples]
        chosen += sorted(of_prompt, key=lambda item: -_mean_logprob(item[1]))[:choices]
    return chosen


def _mean_logprob(answer: Answer) -> float:
    assert answer.scores is not None, "requests with best_of ask for scores"
    logprobs = [score.logprob for score in answer.scores]
    return sum(logprobs) / len(logprobs)
