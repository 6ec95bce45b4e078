"""The table holds what a recount gives, and never more than twice the rows that a step needs."""

import random
from collections import Counter

import torch

from contracts.messages.sampling import Sampling
from engine.backends.adjusting.device_counts import FEWEST_ROWS, DeviceCounts
from engine.backends.adjusting.logit_changes import LogitChanges
from engine.backends.adjusting.row_changes import NO_CONDITIONAL_TOKENS, RowChange
from engine.plan import Work

VOCAB, PROMPT = 19, 3
CPU = torch.device("cpu")
ASKED = LogitChanges(Sampling(0, repetition_penalty=1.5), VOCAB)


def change(sequence: int, text: list[int]) -> RowChange:
    work = Work(sequence, 0, [0], ([1],), ASKED.sampling, (0,), len(text) - PROMPT, text, PROMPT)
    return RowChange(0, work, ASKED, None, [], NO_CONDITIONAL_TOKENS, None)


def row_of(text: list[int]) -> list[int]:
    output = Counter(text[PROMPT:])
    return [2 * output[token] + (token in text[:PROMPT]) for token in range(VOCAB)]


def test_texts_that_grow_wait_and_come_back_are_counted_once() -> None:
    draw = random.Random(5)
    counts, texts = DeviceCounts(), {number: draw.choices(range(VOCAB), k=PROMPT) for number in range(40)}
    for _ in range(60):
        members = draw.sample(sorted(texts), draw.randint(1, 6))
        for number in members:
            texts[number] += draw.choices(range(VOCAB), k=draw.choice((0, 1, 1, 5)))
        texts[members[0]] = list(texts[members[0]])  # another text under the same number
        updates = counts.plan([change(number, texts[number]) for number in members], VOCAB, CPU)
        counts.apply(*map(torch.from_numpy, updates[1:]))
        assert len(counts.table) == FEWEST_ROWS
        for row, number in zip(updates.rows.tolist(), members, strict=True):
            assert counts.table[row].tolist() == row_of(texts[number])
    everybody = [change(number, text) for number, text in texts.items()]
    updates = counts.plan(everybody, VOCAB, CPU)
    counts.apply(*map(torch.from_numpy, updates[1:]))
    assert len(counts.table) == 64
    assert [counts.table[row].tolist() for row in updates.rows.tolist()] == [row_of(text) for text in texts.values()]
