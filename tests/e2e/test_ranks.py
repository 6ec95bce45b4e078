"""Workers of several ranks give the references' tokens; a rank that dies ends its worker and loses no request."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import System
from tests.waiting import wait_until

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
LENGTHS = [1, 15, 17, 64, 100, 255, 300, 600]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("variant", "ranks"), [("llama", 4), ("qwen3-moe", 2), ("deepseek-v3", 2)])
def test_a_worker_of_several_ranks_gives_the_references_tokens(tmp_path: Path, variant: str, ranks: int) -> None:
    model = build_served_model(tmp_path / "model", variant)
    runs = references(model, LENGTHS, new_tokens=12)
    with System(tmp_path, model, prefill=0, worker=(*FP32, "--tensor-parallel", str(ranks))) as system:
        processes = children(system.workers["decode-0"].pid)
        assert len(processes) == ranks - 1
        assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        system.wait_until_idle()
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.timeout(240)
def test_a_killed_rank_ends_its_worker_and_loses_no_request(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, [20, 300, 90, 210, 40, 500], new_tokens=60)
    with System(tmp_path, model, prefill=0, decode=2, worker=(*FP32, "--tensor-parallel", "2")) as system:
        streams = Streams(system.gateway_url, runs)
        streams.begin_to_flow(6)
        worker = system.workers["decode-0"]
        (rank,) = children(worker.pid)
        system.killed.add(system.workers.pop("decode-0").pid)
        os.kill(rank, signal.SIGKILL)
        assert worker.wait(20) == 1
        assert streams.finish() == 6
        wait_until(lambda: len(system.records()) == 1, "the dead worker's record to expire")
        system.wait_until_idle()
        assert "rank 1 has ended" in system.log()
