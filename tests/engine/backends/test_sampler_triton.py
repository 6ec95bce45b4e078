"""The Triton sampler beyond what `test_sampler.py` asks of every sampler: PyTorch's draws, and its two halves."""

import pytest
import torch
from torch import Tensor

from core.messages import Sampling
from engine.backends.reference.sampler import ReferenceSampler
from engine.backends.sampler import Draw
from engine.backends.triton.sampler import DrawBuffer
from tests.engine.backends.device_sampler import DEVICE, DeviceSampler

KINDS = [
    Sampling(1, temperature=0.0),
    Sampling(2),
    Sampling(3, temperature=0.7, top_k=20, top_p=0.95),
    Sampling(4, temperature=1.4, top_p=0.9, min_p=0.02),
    Sampling(5, top_k=1000),
    Sampling(6, min_p=0.2),
]
VOCAB = 257


def logits_of(rows: int, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Some are equal."""
    logits = torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(rows)) * spread
    logits[:, ::2] = logits[:, ::2].bfloat16().float()
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_draws_are_those_of_torch(dtype: torch.dtype, spread: float) -> None:
    """Sampler against sampler, from the draws on: to the token."""
    draws = [Draw(kind, (7, 0) if index % 2 else (index,), 3 * index) for index, kind in enumerate(KINDS)]
    logits = logits_of(len(draws), spread, dtype)
    expected, _ = ReferenceSampler().sample(logits.clone(), draws)
    found, finite = DeviceSampler().sample(logits, draws)
    assert torch.equal(found, expected) and finite.all()
    assert found.dtype == torch.int64 and finite.dtype == torch.bool


def test_a_buffer_serves_one_step_after_the_other() -> None:
    """As a captured launch does: the place and the shape stay, the draws change, and some places are unused."""
    logits = logits_of(4, 2.0)
    buffer = DrawBuffer(5, torch.device(DEVICE))
    steps = [
        [Draw(KINDS[2], (0, 1, 2), 5), Draw(KINDS[0], (0,), 6)],
        [Draw(KINDS[row], (row,), 9) for row in (1, 3, 0, 5)],
        [Draw(KINDS[0], (0,), 7)],
    ]
    where = buffer.settings.rows.data_ptr()
    for draws in steps:
        expected, _ = ReferenceSampler().sample(logits[: len(draws)].clone(), draws)
        buffer.fill(draws, VOCAB)
        tokens, finite = buffer.launch(logits.to(DEVICE), filtered=True)
        assert len(tokens) == 5 and finite.all()
        assert tokens[: len(expected)].tolist() == expected.tolist()
        assert buffer.settings.rows.data_ptr() == where


def test_a_buffer_tells_whether_there_is_a_filter() -> None:
    buffer = DrawBuffer(2, torch.device(DEVICE))
    greedy = Sampling(1, temperature=0.0, top_k=5, top_p=0.5, min_p=0.5)
    none = [greedy, Sampling(2), Sampling(3, top_k=VOCAB)]
    some = [Sampling(2, top_k=5), Sampling(2, top_p=0.5), Sampling(2, min_p=0.5)]
    for kind in none:
        assert not buffer.fill([Draw(kind, (0,), 0), Draw(none[1], (0,), 0)], VOCAB), kind
    for kind in some:
        assert buffer.fill([Draw(none[1], (0,), 0), Draw(kind, (0,), 0)], VOCAB), kind


def test_a_buffer_refuses_more_samples_than_it_holds() -> None:
    with pytest.raises(AssertionError, match="3 samples, room for 2"):
        DrawBuffer(2, torch.device(DEVICE)).fill([Draw(KINDS[0], (0, 1, 2), 0)], VOCAB)


@pytest.mark.gpu
def test_a_captured_launch_draws_what_was_filled_in_before_each_replay() -> None:
    logits = logits_of(3, 2.0).cuda()
    buffer = DrawBuffer(3, logits.device)
    draws = [[Draw(KINDS[(row + step) % 6], (0,), step) for row in range(3)] for step in range(8)]
    buffer.fill(draws[0], VOCAB)
    buffer.launch(logits, filtered=True)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = buffer.launch(logits, filtered=True)
    for each in draws:
        buffer.fill(each, VOCAB)
        graph.replay()
        assert tokens.tolist() == ReferenceSampler().sample(logits.cpu(), each)[0].tolist()
