"""Prompts are equal where a workload says so, and nowhere else."""

import random
from itertools import islice

from workloads.example_chats import EXAMPLE_CHATS
from workloads.lengths import Lengths
from workloads.request import Span, Workload, timed


def test_prompts_share_their_prefix_and_nothing_more() -> None:
    workload = Workload(Lengths(4, 40), Lengths(5, 9), shared_tokens=16)
    prompts = []
    for request in islice(workload.requests(random.Random(1)), 50):
        ids = [number for span in request.spans for number in span.ids(1000)]
        assert len(ids) == request.prompt_tokens and 20 <= len(ids) <= 56 and 5 <= request.output_tokens <= 9
        assert all(0 <= number < 1000 for number in ids)
        prompts.append(ids)
    assert len({tuple(ids[:16]) for ids in prompts}) == 1
    assert len({tuple(ids[16:20]) for ids in prompts}) == 50


def test_equal_spans_are_equal_ids_and_a_shorter_span_is_a_prefix() -> None:
    assert Span(5, 30).ids(4096) == Span(5, 30).ids(4096) != Span(6, 30).ids(4096)
    assert Span(5, 30).ids(4096)[:10] == Span(5, 10).ids(4096)


def test_without_lengths_example_chats_are_sent() -> None:
    chats = {(chat.text, chat.max_tokens) for chat in EXAMPLE_CHATS}
    made = list(islice(Workload().requests(random.Random(1)), 30))
    assert all((*request.chat, request.output_tokens) in chats for request in made) and len(set(made)) > 5
    assert {each.output_tokens for each in islice(Workload(output=Lengths(9, 9)).requests(random.Random(1)), 9)} == {9}


def test_a_load_ends_with_its_times_or_its_count() -> None:
    requests = Workload().requests(random.Random(1))
    assert [each.due_s for each in timed(iter([0.0, 0.5]), requests, 9)] == [0.0, 0.5]
    assert len(list(timed(iter([0.0, 0.5, 0.7]), requests, 2))) == 2
