"""What was measured on a device is found there, and nowhere else."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from kernels import tuned_tables, tuning
from kernels.tuning import Config, asked, record, tuned

DEFAULT = Config({"TILE": 64})
MEASURED = Config({"TILE": 128}, warps=8, stages=3)


@pytest.fixture(autouse=True)
def _own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned_tables, "SHIPPED_FILE", tmp_path / "shipped.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card A")
    tuning._of_device.cache_clear()


def test_without_a_measurement_the_default_serves() -> None:
    assert tuned("rms_norm", "fp32", torch.device("cuda"), DEFAULT) == DEFAULT


def test_what_was_recorded_is_found_for_its_kernel_and_shape_only() -> None:
    record("Card A", "rms_norm", "fp32", MEASURED)
    assert tuned("rms_norm", "fp32", torch.device("cuda"), DEFAULT) == MEASURED
    assert tuned("rms_norm", "bf16", torch.device("cuda"), DEFAULT) == DEFAULT
    assert tuned("sample", "fp32", torch.device("cuda"), DEFAULT) == DEFAULT


def test_another_device_has_its_own() -> None:
    record("Card B", "rms_norm", "fp32", MEASURED)
    assert tuned("rms_norm", "fp32", torch.device("cuda"), DEFAULT) == DEFAULT
    assert tuned("rms_norm", "fp32", torch.device("cpu"), DEFAULT) == DEFAULT


def test_a_measurement_of_this_host_comes_before_the_shipped_entry_and_hides_no_other(tmp_path: Path) -> None:
    shipped = {"Card A": {"rms_norm": {shape: asdict(DEFAULT) for shape in ("fp32", "bf16")}}}
    (tmp_path / "shipped.json").write_text(json.dumps(shipped))
    record("Card A", "rms_norm", "fp32", MEASURED)
    unknown = Config({"TILE": 7})
    assert tuned("rms_norm", "fp32", torch.device("cuda"), unknown) == MEASURED
    assert tuned("rms_norm", "bf16", torch.device("cuda"), unknown) == DEFAULT
    assert json.loads((tmp_path / "shipped.json").read_text()) == shipped


def test_the_table_is_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It outlives a container there, which the package's folder does not."""
    record("Card A", "rms_norm", "fp32", MEASURED)
    assert [path.name for path in (tmp_path / "cache" / "baton").iterdir()] == ["tuned.json"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert tuned_tables.own_file() == Path("/home/someone/.cache/baton/tuned.json")


def test_options_are_what_a_launch_takes() -> None:
    assert MEASURED.options() == {"TILE": 128, "num_warps": 8, "num_stages": 3}


def test_what_is_asked_for_can_be_watched() -> None:
    """A measurement has to be recorded as what a launch asks for: by whoever measures, and only meanwhile."""
    cuda = torch.device("cuda")
    tuned("rms_norm", "fp32", cuda, DEFAULT)
    with asked() as outer:
        tuned("rms_norm", "bf16", torch.device("cpu"), DEFAULT)
        with asked() as inner:
            tuned("sample", "fp32", cuda, DEFAULT)
    tuned("rms_norm", "fp16", cuda, DEFAULT)
    assert (outer, inner) == ([("rms_norm", "bf16")], [("sample", "fp32")])
