"""The benchmark of what is beside the model measures steps of all sequences, and needs no model."""

import sys

import pytest

from benchmarks import steps


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_tables_for_every_size(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, sizes in (("BATCHES", (1, 3)), ("VOCABULARIES", (100,)), ("ROWS", (2, 5))):
        monkeypatch.setattr(steps, name, sizes)
    monkeypatch.setattr(sys, "argv", ["steps", "--cpu-backend", backend, "--rounds", "1"])
    assert steps.main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    heads = [row[0] for row in rows if "---" not in row]
    assert heads == ["sequences", "1", "3", f"{backend} sampling, µs", "2 x 100", "5 x 100"]
    assert all(float(cell) >= 0 for row in rows if row[0][0].isdigit() for cell in row[1:])


def test_time_is_split_over_a_steps_parts() -> None:
    assert all(seconds > 0 for seconds in steps.steps(2))
