"""Later turns begin with the whole text before them, and pauses are as long as they should be on average."""

import random
from itertools import islice, pairwise
from statistics import fmean

import pytest

from workloads.conversations import ConversationWorkload
from workloads.lengths import Lengths
from workloads.request import Workload

FIRST = Workload(Lengths(100, 100), Lengths(5, 9), shared_tokens=50)


def test_a_turn_has_the_whole_text_before_it() -> None:
    talks = ConversationWorkload(FIRST, Lengths(2, 6), Lengths(20, 30), 4.0)
    for request in islice(talks.requests(random.Random(3)), 40):
        turns = list(request.turns())
        assert 2 <= len(turns) <= 6 and turns[0].prompt_tokens == 150
        for before, after in pairwise(turns):
            assert after.spans[: len(before.spans)] == before.spans
            answer, added = after.spans[len(before.spans) :]
            assert answer.tokens == before.output_tokens and 20 <= added.tokens <= 30


def test_pauses_are_exponential_with_their_mean() -> None:
    talks = ConversationWorkload(FIRST, Lengths(5, 5), Lengths(1, 1), 4.0)
    requests = [turn for each in islice(talks.requests(random.Random(3)), 300) for turn in each.turns()]
    pauses = [turn.then.pause_s for turn in requests if turn.then is not None]
    assert len(pauses) == 4 * 300 and fmean(pauses) == pytest.approx(4.0, rel=0.1)
    assert len({turn.spans[-1] for turn in requests}) == len(requests)
