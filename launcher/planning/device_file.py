"""Reads a user's devices and prices for `baton plan`: a TOML or JSON file that adds to the built-in table."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from contracts.errors import ConfigError
from pricing.planning.devices import DeviceLinks, DevicePrice, PlannedDevice
from pricing.roofline.gpu_rates import GpuRates

OPTION = "--device-file"
BYTES_PER_GB = 1e9
RATES: Mapping[str, tuple[str, float]] = {
    "memory_gb": ("memory", BYTES_PER_GB),
    "read_gb_per_s": ("read", BYTES_PER_GB),
    "bf16_tflops": ("multiply", 1e12),
    "processors": ("processors", 1),
    "clock_ghz": ("clock", 1e9),
    "compute_capability": ("compute_capability", 1),
}
LINKS: Mapping[str, tuple[str, float]] = {
    "peer_gb_per_s": ("peer", BYTES_PER_GB),
    "host_gb_per_s": ("host", BYTES_PER_GB),
    "network_gb_per_s": ("network", BYTES_PER_GB),
    "sum_latency_us": ("sum_latency_s", 1e-6),
    "host_devices": ("host_devices", 1),
}
"""Field of the file → field of the struct, and the unit of the first in units of the second."""


class DeviceEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[device]]` of the file: a known name changes figures of that device, another name needs all of them."""

    name: str
    memory_gb: float | None = None
    read_gb_per_s: float | None = None
    bf16_tflops: float | None = None
    processors: int | None = None
    clock_ghz: float | None = None
    compute_capability: int | None = None
    peer_gb_per_s: float | None = None
    host_gb_per_s: float | None = None
    network_gb_per_s: float | None = None
    sum_latency_us: float | None = None
    host_devices: int | None = None
    dollars_per_hour: float | None = None
    as_of: str = ""
    source: str = ""


class DeviceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    device: tuple[DeviceEntry, ...] = ()


def with_device_file(known: Mapping[str, PlannedDevice], path: Path) -> dict[str, PlannedDevice]:
    """Returns the devices with those of the file. Raises `ConfigError` with the device and the field that is wrong."""
    try:
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        read = decode(path.read_bytes(), type=DeviceFile)
    except OSError as error:
        raise ConfigError(OPTION, path, error.strerror or "cannot be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(OPTION, path, f"is no table of devices: {error}") from None
    devices = dict(known)
    for entry in read.device:
        devices[entry.name] = _device(entry, devices.get(entry.name), path)
    return devices


def priced(device: PlannedDevice, dollars_per_hour: float, as_of: str, source: str, option: str) -> PlannedDevice:
    """Raises `ConfigError` for a price that is not above 0."""
    if not 0 < dollars_per_hour < float("inf"):
        raise ConfigError(option, dollars_per_hour, f"the price of {device.name} must be above 0")
    return structs.replace(device, price=DevicePrice(dollars_per_hour, as_of or today(), source))


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _device(entry: DeviceEntry, known: PlannedDevice | None, path: Path) -> PlannedDevice:
    rates, links = _figures(entry, RATES, path), _figures(entry, LINKS, path)
    if known is None:
        missing = [
            name
            for fields in (RATES, LINKS)
            for name in fields
            if getattr(entry, name) is None and name != "host_devices"
        ]
        if missing:
            raise ConfigError(OPTION, path, f"{entry.name} is not in the table, and lacks {', '.join(missing)}")
        device = PlannedDevice(entry.name, msgspec.convert(rates, GpuRates), msgspec.convert(links, DeviceLinks))
    else:
        device = structs.replace(
            known, rates=structs.replace(known.rates, **rates), links=structs.replace(known.links, **links)
        )
    if entry.dollars_per_hour is None:
        return device
    device = priced(device, entry.dollars_per_hour, entry.as_of, entry.source, f"{OPTION} {path}: dollars_per_hour")
    try:
        date.fromisoformat(entry.as_of)
    except ValueError:
        wrong = f"{entry.name}: as_of, the day of its price, is {entry.as_of!r}; expected a date such as 2026-11-01"
        raise ConfigError(OPTION, path, wrong) from None
    return device


def _figures(entry: DeviceEntry, fields: Mapping[str, tuple[str, float]], path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (field, unit) in fields.items():
        value = getattr(entry, name)
        if value is None:
            continue
        if not 0 < value < float("inf"):
            raise ConfigError(OPTION, path, f"{entry.name}: {name} must be above 0, not {value:g}")
        found[field] = value * unit if unit != 1 else value
    return found
