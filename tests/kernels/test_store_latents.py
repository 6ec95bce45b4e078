"""Latent vectors and keys against float64; nothing but the slots of this step's tokens is written."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.store_latents import CANDIDATE_CONFIGS, reference, store_latents, unsupported
from kernels.tuning import Config
from tests.kernels.poison import poisoned

EPS = 1e-6
MAX_POSITION = 50


@dataclass(frozen=True)
class Shape:
    tokens: int
    first: int
    latent: int
    rope: int
    block: int = 8


SHAPES = [Shape(1, 48, 32, 16), Shape(5, 97, 40, 6, 16), Shape(3, 16, 512, 64, 24), Shape(7, 0, 33, 2)]


class Step:
    """Fresh random inputs; the pool is poison from end to end."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype, *, queries: bool) -> None:
        tokens, stored = shape.tokens, shape.latent + shape.rope
        self.shape = shape
        self.down = torch.randn(tokens, shape.first + stored, device=device).to(dtype)
        self.positions = torch.randint(MAX_POSITION, (tokens,), device=device)
        self.slots = shape.block + torch.randperm(tokens * shape.block, device=device)[:tokens]
        angles = torch.rand(MAX_POSITION, shape.rope // 2, device=device) * 6.3
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
        self.weight = torch.randn(shape.latent, device=device)
        self.query_weight = torch.randn(shape.first, device=device) if queries else None
        self.pool = torch.full((tokens + 1, 1, shape.block, stored), torch.nan, device=device, dtype=dtype)

    def check(self, config: Config | None = None) -> None:
        """A number is rounded once to its format; before, a norm of n numbers is wrong by (n / 2 + 10.5) units of fp32
        (see test_rms_norm.py), a rotation by 3 of twice the largest number of the key."""
        pool, exact_pool, before = self.pool.clone(), self.pool.double(), self.down.clone()
        with poisoned():
            found = store_latents(
                self.down,
                self.positions,
                self.slots,
                self.cos_sin,
                self.weight,
                self.query_weight,
                pool,
                EPS,
                config=config,
            )
        query_weight = None if self.query_weight is None else self.query_weight.double()
        exact = reference(
            self.down.double(),
            self.positions,
            self.slots,
            self.cos_sin.double(),
            self.weight.double(),
            query_weight,
            exact_pool,
            EPS,
        )
        assert self.down.equal(before)
        self._close(found, exact, self.shape.first)

        kept = self.slots >= 0
        place = (self.slots[kept] // self.shape.block, 0, self.slots[kept] % self.shape.block)
        latent = self.shape.latent
        self._close(pool[place][:, :latent], exact_pool[place][:, :latent], latent)
        largest = self.down[kept][:, -self.shape.rope :].double().abs().amax(1, keepdim=True)
        bound = 2 * largest * (torch.finfo(pool.dtype).eps / 2 + 3 * 2**-24)
        assert ((pool[place][:, latent:].double() - exact_pool[place][:, latent:]).abs() <= bound).all()
        pool[place] = torch.nan
        assert pool.isnan().all(), "something was written beside the slots"

    @staticmethod
    def _close(found: Tensor, exact: Tensor, width: int) -> None:
        bound = torch.finfo(found.dtype).eps / 2 + (width / 2 + 10.5) * 2**-24
        least = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps
        assert ((found.double() - exact).abs() <= bound * exact.abs() + least).all()


@pytest.mark.parametrize("queries", [False, True], ids=["", "queries"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_is_that_of_float64(shape: Shape, queries: bool, device: torch.device, dtype: torch.dtype) -> None:
    Step(shape, device, dtype, queries=queries and shape.first > 0).check()


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    Step(Shape(3, 70, 48, 16), device, torch.float32, queries=True).check(config)


def test_padding_stores_nothing(device: torch.device, dtype: torch.dtype) -> None:
    step = Step(Shape(4, 20, 32, 8), device, dtype, queries=True)
    step.slots[1], step.slots[3] = -1, -17
    step.check()
    step.slots[:] = -1
    step.check()


def test_no_tokens_are_no_work(device: torch.device, dtype: torch.dtype) -> None:
    Step(Shape(0, 20, 32, 8), device, dtype, queries=True).check()


def test_what_is_too_wide_is_named() -> None:
    assert unsupported(512, 1536) == ""
    assert unsupported(512, 9000) == "store_latents supports latent vectors of up to 8192 numbers, not 9000"
