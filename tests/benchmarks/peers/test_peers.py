"""Peers in processes of their own: ours and transformers, both from this environment, on a tiny model."""

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks.limits.floor import work_of
from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import WORKLOADS, Workload
from benchmarks.models import random_model
from benchmarks.peers import rounds
from benchmarks.peers.model import Model
from benchmarks.peers.process import OURS, PeerProcess, running
from benchmarks.peers.rounds import run_rounds
from benchmarks.peers.setup import PEERS, Peer, PeerError
from benchmarks.peers.table import Measured, table
from engine.model.checkpoint.read_config import read_config
from launcher.stages import StageDisplay
from tests.waiting import alive, children

TRANSFORMERS = next(peer for peer in PEERS if peer.name == "transformers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `benchmarks.peers` keeps it, but the environment of transformers is this one."""
    directory = tmp_path_factory.mktemp("peers")
    random_model.make(directory / "model", "tiny")
    environment(directory, "transformers", f'exec "{sys.executable}" "$@"')
    return directory


def environment(directory: Path, name: str, script: str) -> None:
    """What stands for a peer's interpreter; a link to ours would not find our packages."""
    python = directory / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def model(directory: Path) -> Model:
    return Model(directory / "model", "fp32", vocabulary=4096, longest=64)


@pytest.fixture(scope="module")
def systems(directory: Path) -> Iterator[list[PeerProcess]]:
    with ExitStack() as stack:
        found = [stack.enter_context(running(peer, directory, model(directory), 1)) for peer in (OURS, TRANSFORMERS)]
        for system in found:
            system.loaded(StageDisplay())
        yield found


def test_ours_and_a_peer_give_the_same_tokens(systems: list[PeerProcess]) -> None:
    ours, theirs = systems
    prompts = Workload(3, 12, 10).prompts(4096, seed=1)
    (seconds, tokens), (their_seconds, their_tokens) = ours.run(prompts, 10), theirs.run(prompts, 10)
    assert tokens == their_tokens and [len(each) for each in tokens] == [10] * 3
    assert seconds > 0 and their_seconds > 0
    assert theirs.versions.keys() == {"transformers", "torch"}


def test_a_round_becomes_a_table(systems: list[PeerProcess], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_LOOK_S", 0.0)  # figures do not matter here
    measured = [WORKLOADS[0], WORKLOADS[3]]
    short = [Workload(1, 16, 3), Workload(1, 40, 1)]
    results = run_rounds(systems, short, 2, 4096, lambda what, percent: None)
    for name in results.seconds:  # the table knows targets of the real workloads only
        results.seconds[name] = dict(zip(measured, results.seconds[name].values(), strict=True))
    machine = Machine("a machine", 1, 1e9, 1e12)
    work = work_of(read_config(directory / "model"), torch.float32)
    lines = table(Measured(results, systems, measured, 2, machine, work, "fp32", "none", experts=False))
    assert lines[0].startswith("a machine, 1 threads; Python ") and "transformers (transformers " in lines[0]
    assert lines[2].startswith("| workload | tokens | baton | transformers | limit |")
    cells = [cell.strip() for cell in lines[4].split("|")[1:-1]]
    assert cells[:2] == ["1 x 16→128", "output"] and cells[-1] == "1.0" and "(transformers)" in cells[-2]
    assert math.isclose(float(cells[2]), results.rate("baton", measured[0]), abs_tol=0.05)
    assert "of 6: transformers 6" in lines[6]


def test_processes_end_with_the_one_that_measures(directory: Path) -> None:
    with running(TRANSFORMERS, directory, model(directory), 1) as system:
        system.loaded(StageDisplay())
        pids = [*children(system.pid), system.pid]
        assert alive(system.pid) and system.processor_seconds() > 0
    assert not any(alive(pid) for pid in pids)


def test_a_peer_that_ends_says_why(directory: Path) -> None:
    environment(directory, "broken", 'echo "no such processor" >&2; exit 3')
    with (
        running(Peer("broken", "none", ("one of its own",)), directory, model(directory), 1) as system,
        pytest.raises(PeerError, match=r"^broken: has ended: no such processor \(log: .*broken\.log\)"),
    ):
        system.loaded(StageDisplay())
