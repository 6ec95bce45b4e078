"""A mixture of experts against float64: whatever is chosen, each token has the sum of its own experts."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import get_args

import pytest
import torch
from torch import Tensor

from kernels.gate import Activation
from kernels.gate import reference as gated
from kernels.moe.expert_products import FEW_ROWS, MANY_ROWS, SOME_ROWS, Expert, rows_for, unsupported
from kernels.moe.experts import CANDIDATE_CONFIGS, experts, reference
from kernels.tuning import Config
from tests.kernels.paged_problem import WALK
from tests.kernels.poison import poisoned

SMALL = Config({"TILE": 16, "DEPTH": 16, "GROUP": 2}, warps=4, stages=2)


@dataclass(frozen=True)
class Problem:
    x: Tensor
    chosen: Tensor
    shares: Tensor
    first: Expert
    second: Expert
    activation: Activation

    def run(self, config: Config | None = SMALL) -> Tensor:
        with poisoned():
            return experts(*vars(self).values(), config=config)

    def check(self, found: Tensor) -> None:
        """Each expert of each token, by magnitudes: a product of n numbers is wrong by WALK sqrt(n) units of fp32 of
        the sum of its terms' magnitudes (see paged_problem.py), and 2 more for bias and sum. An activation's slope in g
        is at most 1.2 (|u| + 1), in u at most |g|; it is wrong by (7 |z| + 13) units itself (see test_gate.py; |z| is
        below 30 here), and rounded to the format, as an expert's output and the result are."""
        kept, single = torch.finfo(self.x.dtype).eps / 2, 2**-24
        x, shares = self.x.double(), self.shares.double()
        first, second = (Expert(p.weight.double(), None if p.bias is None else p.bias.double()) for p in self.products)
        exact = reference(x, self.chosen, shares, first, second, self.activation)
        bound = torch.zeros_like(exact)
        for expert in range(len(first.weight)):
            token, turn = (self.chosen == expert).nonzero(as_tuple=True)
            between = self._product(x[token], first, expert)
            wrong = self._product(x[token].abs(), first, expert, magnitudes=True)
            wrong *= single * (WALK * sqrt(x.shape[1]) + 2)
            (g, u), (wrong_g, wrong_u) = between.abs().chunk(2, -1), wrong.chunk(2, -1)
            gate = gated(between, self.activation)
            in_gate = 1.2 * (u + 1) * wrong_g + g * wrong_u + (kept + 223 * single) * gate.abs()
            given = self._product(gate, second, expert).abs()
            own = self._product(in_gate, second, expert, magnitudes=True)
            terms = self._product(gate.abs(), second, expert, magnitudes=True)
            own += terms * single * (WALK * sqrt(gate.shape[1]) + 2) + given * (kept + 2 * single)
            bound.index_add_(0, token, own * shares[token, turn, None].abs())
        bound += exact.abs() * kept + len(first.weight) * torch.finfo(self.x.dtype).smallest_normal
        assert found.dtype == self.x.dtype and found.shape == self.x.shape
        excess = (found.double() - exact).abs() - bound * 1.01  # errors of errors
        assert (excess <= 0).all(), f"beyond the bound by {excess.max():.3g}"

    @property
    def products(self) -> tuple[Expert, Expert]:
        return self.first, self.second

    @staticmethod
    def _product(x: Tensor, product: Expert, expert: int, *, magnitudes: bool = False) -> Tensor:
        weight, bias = product.weight[expert], None if product.bias is None else product.bias[expert]
        if magnitudes:
            weight, bias = weight.abs(), None if bias is None else bias.abs()
        return x @ weight.T if bias is None else x @ weight.T + bias


def problem(
    chosen: Tensor,
    count: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    hidden: int = 24,
    intermediate: int = 40,
    bias: bool = False,
    activation: Activation = "silu",
) -> Problem:
    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device=device) * scale).to(dtype)

    first = Expert(
        random(count, 2 * intermediate, hidden, scale=hidden**-0.5), random(count, 2 * intermediate) if bias else None
    )
    second = Expert(
        random(count, hidden, intermediate, scale=intermediate**-0.5), random(count, hidden) if bias else None
    )
    shares = torch.rand(chosen.shape, device=device)
    return Problem(random(len(chosen), hidden), chosen.int().to(device), shares, first, second, activation)


def drawn(tokens: int, used: int, count: int) -> Tensor:
    return torch.stack([torch.randperm(count)[:used] for _ in range(tokens)])


@pytest.mark.parametrize(
    ("tokens", "used", "count"), [(1, 1, 1), (1, 3, 7), (9, 2, 5), (30, 2, 3)], ids=["one", "a token", "few", "some"]
)
def test_random_choices(tokens: int, used: int, count: int, device: torch.device, dtype: torch.dtype) -> None:
    made = problem(drawn(tokens, used, count), count, device, dtype)
    made.check(made.run())


@pytest.mark.parametrize("tokens", [1, 9, 70])
def test_experts_of_other_ranks_add_nothing(tokens: int, device: torch.device, dtype: torch.dtype) -> None:
    """Nothing is computed for them: their rows hold whatever the memory held."""
    chosen = drawn(tokens, 3, 8)
    chosen[0] = 5
    made = problem(chosen.clamp(max=5), 5, device, dtype)
    made.check(made.run())


@pytest.mark.parametrize("activation", get_args(Activation))
def test_biases_and_activations(activation: Activation, device: torch.device, dtype: torch.dtype) -> None:
    made = problem(drawn(5, 2, 4), 4, device, dtype, bias=True, activation=activation)
    made.check(made.run())


@pytest.mark.parametrize("expert", [0, 3])
def test_all_tokens_on_one_expert(expert: int, device: torch.device, dtype: torch.dtype) -> None:
    made = problem(torch.full((70, 1), expert), 4, device, dtype)
    made.check(made.run())


@pytest.mark.parametrize(("hidden", "intermediate"), [(16, 16), (33, 7), (64, 48), (20, 100)])
def test_odd_sizes(hidden: int, intermediate: int, device: torch.device, dtype: torch.dtype) -> None:
    made = problem(drawn(3, 2, 3), 3, device, dtype, hidden=hidden, intermediate=intermediate, bias=True)
    made.check(made.run())


@pytest.mark.parametrize("config", [None, *CANDIDATE_CONFIGS], ids=str)
def test_every_candidate_computes_the_same(config: Config | None, device: torch.device) -> None:
    made = problem(drawn(20, 2, 2), 2, device, torch.float32, hidden=130, intermediate=70)
    made.check(made.run(config))


def test_a_token_has_the_same_bits_whatever_others_choose(device: torch.device) -> None:
    made = problem(drawn(6, 2, 4), 4, device, torch.float32)
    others = made.chosen.clone()
    others[1:] = drawn(5, 2, 4).to(device)
    assert made.run()[0].equal(replace(made, chosen=others).run()[0])


def test_a_row_that_is_not_finite_leaves_the_others(device: torch.device) -> None:
    made = problem(drawn(6, 2, 3), 3, device, torch.float32)
    plain = made.run()
    made.x[2] = torch.nan
    found = made.run()
    assert found[2].isnan().all() and found[[0, 1, 3, 4, 5]].equal(plain[[0, 1, 3, 4, 5]])


def test_no_tokens_are_no_work(device: torch.device, dtype: torch.dtype) -> None:
    assert problem(torch.empty((0, 2)), 4, device, dtype).run().shape == (0, 24)


def test_tiles_are_as_large_as_what_an_expert_gets() -> None:
    assert [rows_for(pairs, 128, torch.bfloat16) for pairs in (8, 1024, 1025, 8192, 8193)] == [
        FEW_ROWS,
        FEW_ROWS,
        SOME_ROWS,
        SOME_ROWS,
        MANY_ROWS,
    ]
    assert rows_for(1 << 20, 8, torch.float32) == SOME_ROWS


def test_other_formats_are_named() -> None:
    assert unsupported(torch.bfloat16) == ""
    assert unsupported(torch.float64) == "experts are supported in fp32, fp16 and bf16, not float64"
