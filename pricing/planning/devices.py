"""Devices that a plan may use: rates and links by their data sheets, and the dated price of an hour."""

from collections.abc import Mapping

from msgspec import Struct

from pricing.roofline.gpu_rates import GPU_RATES, GpuRates


class DeviceLinks(Struct, frozen=True):
    """Links of a device: bytes per second each way, to its peers in the host, to host memory, and to other hosts.

    `sum_latency_s`: fixed seconds of a sum over the devices of a host; `host_devices`: number of devices in a host.
    """

    peer: float
    host: float
    network: float
    sum_latency_s: float
    host_devices: int = 8


class DevicePrice(Struct, frozen=True):
    """Dollars per hour of a device, the day on which this was the price, and the source."""

    dollars_per_hour: float
    as_of: str
    source: str = ""


class PlannedDevice(Struct, frozen=True):
    """A kind of device. Without a price a plan refuses it."""

    name: str
    rates: GpuRates
    links: DeviceLinks
    price: DevicePrice | None = None


PCIE4 = DeviceLinks(peer=25e9, host=25e9, network=12.5e9, sum_latency_s=30e-6)
PCIE5 = DeviceLinks(peer=50e9, host=50e9, network=25e9, sum_latency_s=30e-6)
NVLINK3 = DeviceLinks(peer=300e9, host=25e9, network=25e9, sum_latency_s=12e-6)
NVLINK4 = DeviceLinks(peer=450e9, host=50e9, network=50e9, sum_latency_s=10e-6)
NVLINK5 = DeviceLinks(peer=900e9, host=50e9, network=50e9, sum_latency_s=10e-6)
LINKS: Mapping[str, DeviceLinks] = {
    "B200": NVLINK5,
    "H200": NVLINK4,
    "H100": NVLINK4,
    "H100 NVL": PCIE5,
    "H100 PCIe": PCIE5,
    "A100": NVLINK3,
    "A100 SXM4 40GB": NVLINK3,
    "RTX 5090": PCIE5,
}
"""NVLink between all devices of a host by the data sheets, half of the figure for both ways; others have PCIe 4.
Networks are usual: 400, 200 or 100 gigabits for each device. Latencies of sums are assumptions."""
PRICES_SOURCE = "aihardwareindex.com, cost per token, December 2025"
PRICES: Mapping[str, DevicePrice] = {
    "H100": DevicePrice(2.25, "2025-12-31", PRICES_SOURCE),
    "A100 PCIE 40GB": DevicePrice(1.35, "2025-12-31", PRICES_SOURCE),
    "L40S": DevicePrice(0.87, "2025-12-31", PRICES_SOURCE),
}
"""Rents of an hour at some date: default inputs, which `--price` and `--device-file` replace."""
DEVICES: Mapping[str, PlannedDevice] = {
    name: PlannedDevice(name, rates, LINKS.get(name, PCIE4), PRICES.get(name)) for name, rates in GPU_RATES.items()
}
