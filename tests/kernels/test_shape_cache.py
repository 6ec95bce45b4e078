"""What a wrapper prepares for a shape is kept until configs or the device change."""

from kernels.device import DEFAULT_CAPABILITY, assumed
from kernels.shape_cache import by_shape
from kernels.tuning import asked

prepared: list[int] = []


@by_shape
def prepare(width: int) -> int:
    prepared.append(width)
    return 2 * width


def test_a_shape_is_prepared_once_for_each_device() -> None:
    prepared.clear()
    assert [prepare(3), prepare(3), prepare(5)] == [6, 6, 10] and prepared == [3, 5]
    with assumed(*DEFAULT_CAPABILITY):
        prepare(3)
    assert prepared == [3, 5], "the device is the same"
    with assumed(8, 0):
        prepare(3)
        prepare(3)
    prepare(3)
    assert prepared == [3, 5, 3, 3]


def test_who_asks_for_configs_hears_of_shapes_that_were_prepared_before() -> None:
    prepare(3)
    prepared.clear()
    with asked():
        prepare(3)
        prepare(3)
    assert prepared == [3]
