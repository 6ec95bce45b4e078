"""The tiles that suit a GPU are chosen by its compute capability."""

import pytest
import torch

from kernels.attention import prefill_attention
from kernels.attention.attention_tiles import DefaultConfigs
from kernels.device import assumed, multiplies_by_groups
from kernels.tuning import Config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "groups"),
    [((8, 0), False), ((8, 6), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)],
)
def test_only_some_gpus_multiply_by_groups(
    capability: tuple[int, int], groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assumed(*capability):
        assert multiplies_by_groups(CPU) is groups
    assert multiplies_by_groups(CPU), "as Hopper, where nobody says"
    monkeypatch.setattr("kernels.device._of_gpu", lambda device: capability)
    assert multiplies_by_groups(torch.device("cuda", 0)) is groups


def test_other_gpus_have_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[DefaultConfigs] = []
    own = DefaultConfigs.of

    def of(self: DefaultConfigs, dtype: torch.dtype, dim: int) -> Config:
        taken.append(self)
        return own(self, dtype, dim)

    monkeypatch.setattr(DefaultConfigs, "of", of)
    pool, queries = torch.zeros(2, 1, 2, 16, 16), torch.zeros(1, 1, 16)
    table, starts, lengths = torch.ones((1, 1)).int(), torch.arange(2).int(), torch.ones(1).int()
    for capability in ((9, 0), (8, 6)):
        with assumed(*capability):
            prefill_attention.prefill_attention(queries, pool, table, starts, lengths, longest=1)
    assert taken == [prefill_attention.DEFAULT_CONFIGS, prefill_attention.REGISTER_CONFIGS]
