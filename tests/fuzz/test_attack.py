"""A short attack on every port of a whole system; `python -m tests.fuzz` is the long one."""

import io

import pytest

from launcher.stages import StageDisplay
from tests.fuzz.__main__ import FuzzConfig, fuzz


def test_an_attack_on_every_port_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(FuzzConfig(frames=1200, seconds=20.0), StageDisplay(io.StringIO())) == []
    printed = capsys.readouterr().out
    print(printed)
    for port, attackers in (("prefill control", 2), ("decode control", 2), ("decode handoff", 3)):
        assert printed.count(port) == attackers
    assert printed.count("decode payload tcp") == printed.count("decode payload ipc") == 1
