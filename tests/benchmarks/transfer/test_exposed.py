"""The benchmark of exposed time on a tiny system."""

from pathlib import Path

from benchmarks.processes.split_system import split_system
from benchmarks.transfer.exposed import measure, table
from tests.e2e.harness.golden import build_served_model


def test_a_tiny_run_has_every_figure(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    with split_system(str(model), tmp_path) as system:
        rows = [measure(system, prompt, requests=2, seed=1) for prompt in (33, 100)]
    for row in rows:
        assert row.exposed > 0 and 0 < row.prefill <= row.ttft and row.grant > 0 and row.send > 0
    assert rows[0].moved * 7 == rows[1].moved * 3  # whole blocks
    assert len(list(table(rows))) == 1 + len(rows)  # and a head
