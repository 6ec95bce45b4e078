"""Copies of a model that a plan weighs: each format on each device, at each width that holds it."""

from collections.abc import Callable, Mapping, Sequence

from checkpoints.model_size import ModelSize
from launcher.devices.gpus import USABLE_MEMORY_SHARE
from pricing.planning.candidates import CopyFormat
from pricing.planning.devices import PlannedDevice
from pricing.planning.roles import ModelCopy
from pricing.roofline.capacity import Capacity, sum_costs
from pricing.roofline.gpu_step_time import ModelShape

SizeAndShape = tuple[ModelSize, ModelShape]


def capacity_of(device: PlannedDevice, size: ModelSize, shape: ModelShape, width: int) -> Capacity:
    attention, links = size.attention, device.links
    sums = sum_costs(width, attention.layers, attention.hidden, links.peer, links.sum_latency_s)
    return Capacity(shape, device.rates, USABLE_MEMORY_SHARE, width, sums)


def model_copies(
    formats: Sequence[CopyFormat],
    devices: Sequence[PlannedDevice],
    widths: Sequence[int],
    longest: int,
    shape_of: Callable[[CopyFormat], SizeAndShape],
) -> Mapping[CopyFormat, Sequence[ModelCopy]]:
    """Returns the copies that hold a sequence of `longest` tokens, by format; formats without any are left out."""
    found = {}
    for form in formats:
        size, shape = shape_of(form)
        copies = [
            ModelCopy(device, capacity_of(device, size, shape, width))
            for device in devices
            for width in widths
            if width <= device.links.host_devices and size.attention.divides_among(width)
        ]
        if holding := [copy for copy in copies if copy.capacity.fits(longest)]:
            found[form] = holding
    return found
