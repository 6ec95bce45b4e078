"""A sleeping model takes the seconds of a step's work, and says when each layer's KV is stored."""

import time
from typing import Any

import torch

from benchmarks.simulated.sleeping_worker import SleepingModel, work_of
from engine.model.batch import build_batch
from engine.plan import StepPlan, Work
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of

CPU = torch.device("cpu")
PROMPT = Work(0, 16, [1] * 40, (list(range(1, 5)),))
NO_HEAD: Any = None
"""The model whose head is used; these tests draw nothing."""
DECODE = Work(1, 99, [5], (list(range(5, 12)),))


def test_the_work_of_a_step_is_counted() -> None:
    batch = build_batch(StepPlan(1, [PROMPT, DECODE]), 16, CPU, None)
    assert work_of(batch) == StepWork(40, pairs_of(16, 40), 1, 100)


def test_layers_are_stored_one_after_the_other() -> None:
    """The last one no earlier than the step's seconds are over; a sleep may last longer."""
    batch = build_batch(StepPlan(1, [DECODE]), 16, CPU, None)
    began, stored = time.monotonic(), list[tuple[int, float]]()
    model = SleepingModel(NO_HEAD, StepCosts(step=0.02, sequence=0.02), layers=4, width=8, dtype=torch.float32)
    hidden = model.forward(batch, None, lambda layer: stored.append((layer, time.monotonic() - began)))
    assert [layer for layer, _ in stored] == [0, 1, 2, 3]
    assert all(at >= 0.04 * (layer + 1) / 4 for layer, at in stored)
    assert hidden.shape == (len(batch.logit_rows), 8)
