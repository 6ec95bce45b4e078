"""The engine's benchmark on the demo model: what it prints, and what it refuses."""

import pytest

from benchmarks.engine.__main__ import Bench, fitting, table
from benchmarks.engine.native_time import NativeTime
from benchmarks.limits.workloads import WORKLOADS, Workload
from benchmarks.processes import in_process
from engine.backends import choice
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from launcher.options import DEMO_MODEL


def test_a_line_for_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    native = NativeTime()
    config = EngineConfig(model=DEMO_MODEL, device="cpu", dtype="fp32", max_model_len=64)
    load = choice.__dict__["load"]
    with native.watching():
        executor = Executor(load_engine(config, in_process.quiet))
    assert choice.__dict__["load"] is load
    before = native.seconds
    bench = Bench(config, executor, native, rounds=1)
    table(bench, [Workload(3, 8, 4)], profile=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| % of limit | outside native |") and lines[2].startswith("| 3 x 8→4 | ")
    if executor.engine.backend.name == "native":  # where there is no compiler, everything is outside
        assert before < native.seconds


def test_what_does_not_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert fitting(WORKLOADS, 320) == [each for each in WORKLOADS if each.prompt < 1024]
    assert capsys.readouterr().out == "1 x 1024→1 is left out: the model's context is 320 tokens\n"
