"""A deployment on a Ray cluster: golden tokens over its nodes, deaths of actors and nodes, more and fewer workers."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import ray
from ray.util.placement_group import placement_group_table

from infra.process.status import read_status
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.ray_cluster import NAMESPACE, RayCluster, counted, parent, processes_called, ray_cluster
from tests.reference import Golden
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, alive, wait_until

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "16")
UP = ("up", "--on", "ray", "--port", "0", "--dashboard-port", "0")
WORKERS = {"prefill-0", "decode-0", "prefill-1", "decode-1"}


class Deployed:
    """What the tests of this file share: a cluster with a deployment of two pairs."""

    def __init__(self, cluster: RayCluster, directory: Path, model: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.runs: list[Golden] = references(model, [20, 300, 90, 210, 40, 500, 64, 130] * 2, new_tokens=80)
        self.url = cluster.services()["gateway"].endpoint

    def pids(self) -> dict[str, int]:
        found = self.cluster.temporary.glob("baton-ray-*/*/status")
        known = {path.parent.name: status.pid for path in found if (status := read_status(path)) is not None}
        return {name: pid for name, pid in known.items() if alive(pid)}

    def figure(self, name: str) -> float:
        return counted(httpx.get(f"{self.url}/metrics", timeout=DEADLINE_S).text, name)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("ray")
    model = build_served_model(directory / "model", "llama")
    with ray_cluster(head_cpus=1, node_cpus=[4, 4]) as cluster:
        counts = (
            "--prefill",
            "2",
            "--decode",
            "2",
            "--handoff",
            "always",
            "--redis-directory",
            str(directory / "redis"),
        )
        status, out, error = cluster.baton(directory, *UP, "--model", str(model), *counts, *FP32, "--detach")
        assert status == 0, out + error
        assert "Ready after" in out
        yield Deployed(cluster, directory, model)


def test_pairs_are_spread_over_the_nodes_and_tokens_are_golden(deployed: Deployed) -> None:
    cluster = deployed.cluster
    nodes = {name: cluster.node_of(name) for name in WORKERS}
    assert nodes["prefill-0"] == nodes["decode-0"] != nodes["prefill-1"] == nodes["decode-1"]
    answers = complete_all(deployed.url, deployed.runs)
    assert answers == [run.tokens for run in deployed.runs]
    status, out, _ = cluster.baton(deployed.directory, "status")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert status == 0 and rows[0] == ["running"] and all([name, "ready"] in rows for name in WORKERS)


def test_what_cannot_work_is_one_sentence_and_leaves_nothing(deployed: Deployed) -> None:
    """All at once, and a start that is interrupted among them."""
    cluster, directory = deployed.cluster, deployed.directory
    small = (*UP, "--prefill", "0")
    asked = {
        NAMESPACE: (small, 2, "--ray-namespace: 'tested': has actors already (controller, decode-0,"),
        "large": ((*small, "--decode", "30"), 2, "31 CPUs wanted, and the cluster has 4 free of 9 ("),
        "failing": ((*small, "--redis-directory", "/proc/redis"), 1, "redis did not start: "),
        "nobody": (("down",), 2, "--ray-namespace: 'nobody': no deployment runs there; ./baton up --on ray starts one"),
    }
    with ThreadPoolExecutor(len(asked)) as pool:
        runs = {at: pool.submit(cluster.baton, directory, *words, namespace=at) for at, (words, _, _) in asked.items()}
        with cluster.begin(directory, *small, namespace="interrupted") as interrupted:
            assert interrupted.stdout is not None
            assert any(line.split() == ["redis", "starting"] for line in interrupted.stdout)
            interrupted.send_signal(signal.SIGINT)
            out, error = interrupted.communicate(timeout=LONG_DEADLINE_S)
        assert (interrupted.returncode, error) == (0, "") and out.rstrip().endswith("done")
        for at, (_, status, sentence) in asked.items():
            ended, _, error = runs[at].result()
            assert (ended, error.count("\n")) == (status, 1) and sentence in error, error
    assert {one["namespace"] for one in ray.util.list_named_actors(all_namespaces=True)} == {NAMESPACE}


def test_a_killed_actor_takes_its_process_with_it_and_both_are_back(deployed: Deployed) -> None:
    process = deployed.pids()["decode-1"]
    os.kill(parent(process), signal.SIGKILL)
    wait_until(lambda: not alive(process), "the end of the killed actor's process")
    wait_until(lambda: deployed.pids().get("decode-1", process) != process, "another process of decode-1")
    deployed.cluster.wait_until_ready("decode-1")


def test_a_controller_that_dies_finds_its_deployment_again(deployed: Deployed) -> None:
    before = deployed.cluster.services()
    (controller,) = processes_called("ray::Deployment")
    os.kill(controller, signal.SIGKILL)
    wait_until(lambda: not alive(controller), "the controller's end")
    deployed.cluster.wait_until_ready(*before)
    assert deployed.cluster.overview().phase == "running"
    assert set(deployed.cluster.services()) == set(before)


def test_a_worker_is_added_and_removed_under_load(deployed: Deployed) -> None:
    cluster = deployed.cluster
    assert cluster.change("add", "decode") == "decode-2"
    wait_until(lambda: cluster.stage("decode-2") == "ready", "the new worker")
    wait_until(lambda: deployed.figure("baton:worker_usable") == 5, "the gateway to know it")
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(complete_all, deployed.url, deployed.runs)
        wait_until(lambda: deployed.figure("baton:requests_in_progress") > 0, "requests in progress")
        assert cluster.change("remove", "decode") == "decode-2"
        assert answers.result() == [run.tokens for run in deployed.runs]
    assert set(cluster.services()) == {*WORKERS, "gateway", "redis"}


def test_a_node_killed_under_load_loses_no_request(deployed: Deployed) -> None:
    cluster = deployed.cluster
    node, other = cluster.node_of("decode-0"), cluster.node_of("decode-1")
    expected = [run.tokens for run in deployed.runs]
    victims = [deployed.pids()[name] for name in ("prefill-0", "decode-0")]
    gone = threading.Event()

    def load() -> int:
        rounds = 0
        while not gone.is_set():
            assert complete_all(deployed.url, deployed.runs) == expected
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load) for _ in range(2)]  # so that there are answers in progress at every moment
        try:
            wait_until(lambda: deployed.figure("baton:requests_in_progress") > 0, "requests in progress")
            cluster.kill_node(node)
            wait_until(lambda: not any(map(alive, victims)), "the end of the node's processes")
        finally:
            gone.set()
        assert all(each.result() > 0 for each in loads)
    assert deployed.figure("baton:attempts_retried_total") > 0
    cluster.wait_until_ready(*WORKERS)
    assert {cluster.node_of(name) for name in WORKERS} == {other}


def test_down_leaves_nothing(deployed: Deployed) -> None:
    services = list(deployed.pids().values())
    actors = [parent(pid) for pid in services]
    assert len(services) == 5
    status, out, error = deployed.cluster.baton(deployed.directory, "down")
    assert (status, error) == (0, ""), out
    assert not [pid for pid in (*services, *actors) if alive(pid)]
    assert not ray.util.list_named_actors(all_namespaces=True)
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
    assert not list(deployed.cluster.temporary.glob("baton-ray-*")), "its directories are gone"
    assert list((deployed.directory / "redis").iterdir()), "but for the append-only files, which were wanted"
