"""A short attack on every port of a whole system; `python -m benchmarks.fuzz` is the long one."""

import io

import pytest

from benchmarks.fuzz import FuzzConfig, fuzz
from launcher.stages import Stages


@pytest.mark.timeout(240)
def test_an_attack_on_every_port_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(FuzzConfig(frames=3000, seconds=20.0), Stages(io.StringIO())) == []
    printed = capsys.readouterr().out
    print(printed)
    for port in ("prefill control", "decode control", "decode handoff"):
        assert printed.count(port) == 2  # the outsider and the insider
    assert printed.count("decode payload tcp") == printed.count("decode payload ipc") == 1
