"""Workers of several ranks give the references' tokens; a rank that dies ends its worker and loses no request."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import System
from tests.engine.speculation.heads import build_head
from tests.variants import VARIANTS
from tests.waiting import DEADLINE_S, wait_until

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
LENGTHS = [1, 15, 17, 64, 100, 255, 300, 600]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


@pytest.mark.parametrize(
    ("variant", "prefill", "decode", "more"),
    [
        ("llama", 4, 2, ("--speculation", "eagle", "--eagle", "{directory}/head")),
        ("qwen3-moe", 2, 1, ("--speculation", "ngram")),
        ("deepseek-v3", 1, 2, ("--host-kv-memory", "1MiB")),
        ("gemma3", 1, 2, ("--speculation", "draft", "--draft-model", "{directory}/model")),
    ],
)
def test_workers_of_different_widths_give_the_references_tokens(
    tmp_path: Path, variant: str, prefill: int, decode: int, more: tuple[str, ...]
) -> None:
    """KV passes from a worker of one width to a worker of another. The second time, prompts hit the prefix caches.

    `python -m tests.e2e.width_pairs` takes every kind of model through every pair of widths, with killed ranks. Ranks
    are forks here, and commands below.
    """
    model = build_served_model(tmp_path / "model", variant)
    build_head(tmp_path / "head", VARIANTS["llama"]())
    runs = references(model, LENGTHS, new_tokens=12)
    widths = ("--prefill-tp", str(prefill), "--decode-tp", str(decode))
    options = [each.format(directory=tmp_path) for each in more]
    with System(tmp_path, model, worker=(*FP32, *widths, *options), forks_ranks=True) as system:
        ranks = {name: children(worker.pid) for name, worker in system.workers.items()}
        assert {name: 1 + len(pids) for name, pids in ranks.items()} == {"prefill-0": prefill, "decode-0": decode}
        for _ in range(2):
            assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        records = system.wait_until_idle()
        assert [record.load.handoffs for record in records] == [2 * len(runs)] * 2
        assert next(record for record in records if record.role == "decode").load.prompt_tokens == 0
        assert {link.transport for record in records for link in record.links} == {"pool"}
    assert not any(Path(f"/proc/{pid}").exists() for pids in ranks.values() for pid in pids)


@pytest.mark.parametrize(("role", "prefill", "decode"), [("decode", 1, 2), ("prefill", 2, 1)])
def test_a_killed_rank_ends_its_worker_and_loses_no_request(
    tmp_path: Path, role: str, prefill: int, decode: int
) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    runs = references(model, [20, 300, 90, 210, 40, 500], new_tokens=60)
    widths = (f"--{role}-tp", "2")
    with System(tmp_path, model, prefill=prefill, decode=decode, worker=(*FP32, *widths)) as system:
        streams = Streams(system.gateway_url, runs)
        streams.begin_to_flow(6)
        worker = system.workers[f"{role}-0"]
        (rank,) = children(worker.pid)
        system.killed.add(system.workers.pop(f"{role}-0").pid)
        os.kill(rank, signal.SIGKILL)
        assert worker.wait(DEADLINE_S) == 1
        assert streams.finish() == 6
        wait_until(lambda: len(system.records()) == 2, "the dead worker's record to expire")
        system.wait_until_idle()
        assert "rank 1 has ended" in system.log()
