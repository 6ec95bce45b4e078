"""Each rank of a worker has a GPU of its own, of those that the worker sees."""

import pytest

from contracts.errors import ConfigError
from worker.ranks.gpus import VISIBLE_GPUS, gpus_of_ranks


def test_each_rank_has_one_of_the_gpus_that_the_worker_sees() -> None:
    assert gpus_of_ranks(2, "cuda", 4, {}) == ["0", "1"]
    assert gpus_of_ranks(4, "auto", 4, {VISIBLE_GPUS: "6, 7,GPU-0f,1"}) == ["6", "7", "GPU-0f", "1"]


def test_too_few_gpus_are_refused() -> None:
    why = "--tensor-parallel: 4: each rank takes a GPU of its own, all of them on one host, and this worker sees 2"
    with pytest.raises(ConfigError, match=why):
        gpus_of_ranks(4, "cuda", 2, {})
    with pytest.raises(ConfigError, match="--device: 'cuda:1': is one GPU, and each of 2 ranks takes one"):
        gpus_of_ranks(2, "cuda:1", 8, {})
