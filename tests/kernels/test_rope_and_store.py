"""Rotation, norm and store against float64; nothing but the slots of this step's tokens is written."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.rope_and_store import CANDIDATE_CONFIGS, reference, rope_and_store, unsupported
from kernels.tuning import Config

EPS = 1e-6
MAX_POSITION = 50


@dataclass(frozen=True)
class Shape:
    tokens: int
    query_heads: int
    kv_heads: int
    dim: int
    block: int = 8
    turned: int | None = None  # values of a head that are rotated; None: all


SHAPES = [
    Shape(1, 4, 2, 16),
    Shape(7, 9, 3, 22, 16),
    Shape(3, 14, 2, 64, 24),
    Shape(2, 3, 3, 80),
    Shape(5, 20, 1, 32),
    Shape(3, 5, 2, 32, turned=24),
    Shape(2, 6, 3, 80, turned=2),
    Shape(3, 5, 2, 32, turned=0),
]
NORMS = {"": (False, False), "norm": (True, False), "norm as one": (True, True)}


class Step:
    """Fresh random inputs; the pool is poison from end to end."""

    def __init__(
        self, shape: Shape, device: torch.device, dtype: torch.dtype, norm: bool, as_one: bool = False
    ) -> None:
        tokens, count = shape.tokens, shape.query_heads + 2 * shape.kv_heads
        blocks = tokens + 1
        self.query_heads, self.rotated = shape.query_heads, shape.query_heads + shape.kv_heads
        self.heads = torch.randn(tokens, count, shape.dim, device=device).to(dtype)
        self.positions = torch.randint(MAX_POSITION, (tokens,), device=device)
        self.slots = shape.block + torch.randperm((blocks - 1) * shape.block, device=device)[:tokens]
        turned = shape.dim if shape.turned is None else shape.turned
        angles = torch.rand(MAX_POSITION, turned // 2, device=device) * 6.3
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), 1) if turned else None
        size = (blocks, shape.kv_heads, 2, shape.block, shape.dim)
        self.pool = torch.full(size, float("nan"), device=device, dtype=dtype)
        self.weight = torch.randn(self.rotated, shape.dim, device=device).to(dtype) if norm else None
        self.as_one = as_one

    def run(self, config: Config | None = None) -> tuple[Tensor, Tensor]:
        """Runs the kernel; returns the heads and the pool."""
        heads, pool = self.heads.clone(), self.pool.clone()
        rope_and_store(
            heads,
            self.positions,
            self.slots,
            self.cos_sin,
            pool,
            query_heads=self.query_heads,
            norm_weight=self.weight,
            as_one=self.as_one,
            eps=EPS,
            config=config,
        )
        return heads, pool

    def exact(self) -> tuple[Tensor, Tensor]:
        """Computes the same in float64."""
        heads, pool = self.heads.double(), self.pool.double()
        reference(
            heads,
            self.positions,
            self.slots,
            None if self.cos_sin is None else self.cos_sin.double(),
            pool,
            query_heads=self.query_heads,
            norm_weight=None if self.weight is None else self.weight.double(),
            as_one=self.as_one,
            eps=EPS,
        )
        return heads, pool

    def bound(self) -> Tensor:
        """By head of each token. An output is the sum of two products of a value of its head with at most 1, rounded
        once to its format, in fp32 with unit u before: 3 u for products and sum; a norm of n values is wrong by
        (n / 2 + 10.5) u (see test_rms_norm.py). All of it is relative to twice the head's largest value."""
        largest = self.heads.double().abs()
        error = 3.0
        if self.weight is not None:
            for side in (slice(0, self.query_heads), slice(self.query_heads, self.rotated)):
                over = (1, 2) if self.as_one else 2
                inverse = (self.heads[:, side].double().square().mean(over, keepdim=True) + EPS).rsqrt()
                largest[:, side] *= inverse * self.weight[side].double().abs()
            error += self.heads.shape[2] * (self.query_heads if self.as_one else 1) / 2 + 10.5
        relative = torch.finfo(self.heads.dtype).eps / 2 + error * torch.finfo(torch.float32).eps / 2
        return 2 * largest.amax(-1) * relative  # [tokens, heads]

    def check(self, heads: Tensor, pool: Tensor) -> None:
        """Queries in place, keys and values at their slots, and every other bit as it was."""
        exact_heads, exact_pool = self.exact()
        bound = self.bound()
        queries = slice(0, self.query_heads)
        assert ((heads[:, queries].double() - exact_heads[:, queries]).abs().amax(-1) <= bound[:, queries]).all()
        assert torch.equal(heads[:, self.query_heads :], self.heads[:, self.query_heads :])

        kept = self.slots >= 0
        block = self.pool.shape[3]
        place = (self.slots[kept] // block, slice(None), slice(None), self.slots[kept] % block)
        found, exact = pool[place], exact_pool[place]  # [tokens, kv_heads, 2, dim]
        assert torch.equal(found[:, :, 1], self.heads[kept][:, self.rotated :])
        keys = bound[kept][:, self.query_heads : self.rotated]
        assert ((found[:, :, 0].double() - exact[:, :, 0]).abs().amax(-1) <= keys).all()

        pool[place] = float("nan")
        assert pool.isnan().all(), "something was written beside the slots"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_is_that_of_float64(shape: Shape, norm: str, device: torch.device, dtype: torch.dtype) -> None:
    step = Step(shape, device, dtype, *NORMS[norm])
    step.check(*step.run())


@pytest.mark.parametrize("config", CANDIDATE_CONFIGS, ids=str)
def test_every_candidate_computes_the_same(config: Config, device: torch.device) -> None:
    step = Step(Shape(3, 14, 2, 64), device, torch.float32, norm=True)
    step.check(*step.run(config))


def test_a_weight_may_be_wider_than_the_heads(device: torch.device, dtype: torch.dtype) -> None:
    step = Step(Shape(3, 4, 2, 16), device, dtype, norm=True)
    step.weight = torch.randn(6, 16, device=device)
    step.check(*step.run())


def test_padding_stores_nothing(device: torch.device, dtype: torch.dtype) -> None:
    step = Step(Shape(4, 4, 2, 16), device, dtype, norm=False)
    step.slots[1], step.slots[3] = -1, -17
    step.check(*step.run())
    step.slots[:] = -1
    step.check(*step.run())


def test_values_pass_bit_by_bit(device: torch.device, dtype: torch.dtype) -> None:
    """Infinities, NaN and zeros among them are no concern of the norm, nor of the rotation."""
    step = Step(Shape(1, 4, 2, 16), device, dtype, norm=True)
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0], device=device).to(dtype)
    step.heads[0, step.rotated, :4] = odd
    step.slots[0] = 8
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    _, pool = step.run()
    assert torch.equal(pool[1, :, 1, 0].view(bits), step.heads[0, step.rotated :].view(bits))


def test_no_tokens_are_no_work(device: torch.device, dtype: torch.dtype) -> None:
    step = Step(Shape(0, 4, 2, 16), device, dtype, norm=False)
    step.check(*step.run())


def test_unsupported_head_sizes_are_named() -> None:
    assert [unsupported(dim) for dim in (2, 22, 80, 512)] == [""] * 4
    assert unsupported(27) == "rope_and_store supports even head sizes up to 512, not 27"
    assert unsupported(128, 96) == ""
    assert unsupported(128, 129).endswith("norms up to 16384 values as one, not 129 heads of 128 values")
    assert unsupported(514) == "rope_and_store supports even head sizes up to 512, not 514"
