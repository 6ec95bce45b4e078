"""A user's devices and prices: added, changed, and refused with the field that is wrong."""

import json
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from launcher.planning.device_file import with_device_file
from pricing.planning.devices import DEVICES

NEW_DEVICE = {
    "name": "MI300X",
    "memory_gb": 192,
    "read_gb_per_s": 5300,
    "bf16_tflops": 1307,
    "processors": 304,
    "clock_ghz": 2.1,
    "compute_capability": 94,
    "peer_gb_per_s": 64,
    "host_gb_per_s": 50,
    "network_gb_per_s": 50,
    "sum_latency_us": 20,
    "dollars_per_hour": 3.5,
    "as_of": "2026-11-01",
}


def test_toml_changes_a_known_device_and_keeps_its_other_figures(tmp_path: Path) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(
        '[[device]]\nname = "H100"\ndollars_per_hour = 2.5\nas_of = "2026-11-01"\nnetwork_gb_per_s = 12.5\n'
    )
    found = with_device_file(DEVICES, file)["H100"]
    assert found.price is not None and (found.price.dollars_per_hour, found.price.as_of) == (2.5, "2026-11-01")
    assert found.links.network == 12.5e9 and found.rates == DEVICES["H100"].rates


def test_json_adds_a_device_with_all_figures(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(json.dumps({"device": [NEW_DEVICE]}))
    found = with_device_file(DEVICES, file)["MI300X"]
    assert found.rates.memory == 192e9 and found.links.sum_latency_s == pytest.approx(20e-6)
    assert found.links.host_devices == 8


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "X1", "memory_gb": 10}, "X1 is not in the table, and lacks read_gb_per_s, bf16_tflops"),
        ({"name": "H100", "memory_gb": -1}, "H100: memory_gb must be above 0, not -1"),
        ({"name": "H100", "dollars_per_hour": 0}, "the price of H100 must be above 0"),
        ({"name": "H100", "dollars_per_hour": 3}, "H100: as_of, the day of its price, is ''; expected a date"),
        ({"name": "H100", "dollars_per_hour": 3, "as_of": "soon"}, "is 'soon'; expected a date"),
        ({"name": "H100", "dolars": 3}, "is no table of devices"),
    ],
)
def test_a_figure_that_is_wrong_is_named(tmp_path: Path, entry: dict[str, object], error: str) -> None:
    file = tmp_path / "devices.json"
    file.write_text(json.dumps({"device": [entry]}))
    with pytest.raises(ConfigError, match=error):
        with_device_file(DEVICES, file)


def test_a_file_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        with_device_file(DEVICES, tmp_path / "none.toml")
