"""The GPUs of a worker are those of a host with the fastest links to each other."""

import pytest

from launcher.devices.gpu_links import divided, links_in
from tests.nvidia_smi import topology

CROSSED = topology(4, joined=[(0, 3), (1, 2)])
"""Pairs with NVLink between them."""


def test_nvlink_partners_stay_together() -> None:
    assert divided(range(4), [2, 2], links_in(CROSSED)) == [(0, 3), (1, 2)]
    assert divided(range(4), [1, 2], links_in(CROSSED)) == [(1,), (0, 3)], "the wider worker chooses first"
    assert divided([1, 2, 3], [2], links_in(CROSSED)) == [(1, 2)]


def test_gpus_below_one_bridge_come_before_those_of_two_processors() -> None:
    halves = [(a, b) for half in (range(0, 8, 2), range(1, 8, 2)) for a in half for b in half if a < b]
    links = links_in(topology(8, "SYS", halves, "PXB"))
    assert divided(range(8), [4, 4], links) == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_more_nvlinks_are_better() -> None:
    fast = topology(4, "NV1", [(0, 2)], "NV2")
    assert divided(range(4), [2], links_in(fast)) == [(0, 2)]


@pytest.mark.parametrize("matrix", ["", "No devices were found", topology(8, "NV18")])
def test_without_a_difference_they_are_taken_in_order(matrix: str) -> None:
    assert divided(range(8), [4, 4], links_in(matrix)) == [(0, 1, 2, 3), (4, 5, 6, 7)]
