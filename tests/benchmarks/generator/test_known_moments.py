"""The generator's times beside a server's known moments: every token is found again, none before it was written."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.generator.__main__ import Timed, measure
from benchmarks.generator.core_waits import CoreWaits

OPTIONS = Namespace(rate=40.0, seconds=0.5, batch=2, within_ms=1.0, share=0.99)


def test_the_generator_finds_every_token_and_none_before_it_was_written(tmp_path: Path) -> None:
    timed = measure(OPTIONS, 6, tmp_path / "server.log")
    assert timed.missing == 0 and len(timed.late_ms) == 6 * (1 + 20)
    assert min(timed.late_ms) >= 0.0 and timed.processor_s > 0.0


@pytest.mark.parametrize(
    ("late_ms", "missing", "well"),
    [([0.1] * 2000, 0, True), ([0.1] * 2000, 1, False), ([0.1] * 10, 0, False), ([0.1, 2.0] * 1000, 0, False)],
)
def test_streams_are_timed_well_by_enough_early_moments(late_ms: list[float], missing: int, well: bool) -> None:
    assert Timed([], late_ms, missing, 1.0, 1.0).timed_well(OPTIONS) is well


def test_a_moment_is_undisturbed_if_its_thread_did_not_wait_around_it() -> None:
    waits = CoreWaits(at=[0.0, 1.0, 2.0, 3.0, 4.0], waited=[0.0, 0.5, 0.5, 0.5, 0.9])
    assert [waits.undisturbed(at) for at in (0.5, 1.5, 2.5, 3.5, 4.5)] == [False, False, True, False, False]
