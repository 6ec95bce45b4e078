"""The commands of docs/operations.md for a model on eight GPUs, each rendered to what would run."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from infra.cli import parse
from infra.config.worker import WorkerConfig
from launcher.commands.manifests import print_manifests
from launcher.commands.up import check, up
from launcher.deployment import Deployment, Locations, worker_services
from launcher.devices.gpus import checked_gpus
from launcher.devices.worker_counts import decide_workers, gpus_of_host
from launcher.host.process import Process
from launcher.host.processes import Processes, worker_processes
from launcher.on_ray.placement import NodeResources, bundle, lacking, process_resources
from launcher.on_ray.planning import make_plan, with_decided_workers
from launcher.options import ROOT, HostWorkersConfig, UpConfig
from tests.nvidia_smi import topology, write_nvidia_smi

SECTION = (ROOT / "docs" / "operations.md").read_text().split("### 70B on eight GPUs")[1].split("\n## ")[0]
COMMANDS = [shlex.split(block) for block in re.findall(r"```\n(.*?)\n```", SECTION, re.DOTALL)]
HALVES = [(a, b) for half in (range(0, 8, 2), range(1, 8, 2)) for a in half for b in half if a < b]
"""Pairs of GPUs that NVLink joins: the even numbers with each other, and the odd."""
ON_HALVES = {"prefill-0": "0,2,4,6", "decode-0": "1,3,5,7"}


def command(*begin: str) -> list[str]:
    """Returns the words behind `begin` of the documented command that begins so."""
    (found,) = [words for words in COMMANDS if words[: len(begin)] == list(begin)]
    return found[len(begin) :]


@pytest.fixture
def eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_nvidia_smi(tmp_path, 8, matrix=topology(8, "SYS", HALVES, "NV12"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("launcher.devices.gpus.version", lambda name: "2.13.0")


def assert_two_workers_of_four_gpus(workers: list[Process]) -> None:
    assert {worker.name: worker.settings["CUDA_VISIBLE_DEVICES"] for worker in workers} == ON_HALVES
    for worker in workers:
        words = worker.command[worker.command.index("-m") + 2 :]
        engine = parse(WorkerConfig, words, "worker").engine
        assert (engine.device, engine.width("prefill"), engine.width("decode")) == ("cuda", 4, 4)
        assert engine.gpu_memory_utilization == 0.9


@pytest.mark.usefixtures("eight_gpus")
def test_one_host(tmp_path: Path) -> None:
    words = ["--model", *command("./baton", "up", "--model"), "--port=0", "--dashboard-port=0"]
    checked = check(parse(UpConfig, words, "baton up"))
    assert_two_workers_of_four_gpus(
        Processes(checked.config, tmp_path, "/m", "unix:///r", tmp_path / "secret").workers()
    )
    (note,) = checked.notes
    assert note == (
        "8 GPUs: 1 prefill worker and 1 decode worker, each on 4 GPUs of its own; --prefill and --decode change the"
        " numbers"
    )


@pytest.mark.usefixtures("eight_gpus")
def test_compose(tmp_path: Path) -> None:
    """The container's supervisor makes the same workers of the words that Compose gives it."""
    (words,) = [words for words in COMMANDS if words[-3:] == ["docker", "compose", "up"]]
    variables = dict(word.split("=", 1) for word in words[:-3])
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["workers"]
    given = [
        re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1], match[2]), word)
        for word in service["command"][3:]
    ]
    config = parse(HostWorkersConfig, given, "run workers")
    assert config.model == variables["BATON_MODEL"]
    settled = decide_workers(config, gpus_of_host(checked_gpus(config.device)), None)
    config = replace(config, prefill=settled.prefill, decode=settled.decode, engine=settled.engine)
    deployment = Deployment(tuple(worker_services(config)))
    place = Locations(redis=config.store.redis, model=config.model)
    assert_two_workers_of_four_gpus(worker_processes(deployment, config.device, place, tmp_path))
    assert service["shm_size"] >= 1 << 30
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == "all"


def test_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    words = command("./baton", "manifests")
    assert print_manifests(words[: words.index(">")]) == 0
    written, said = capsys.readouterr()
    pods = dict(worker_pods(yaml.safe_load_all(written)))
    assert pods.keys() == {"prefill", "decode"}
    for role, (replicas, spec) in pods.items():
        (container,) = spec["containers"]
        assert replicas == 1 and container["resources"]["limits"]["nvidia.com/gpu"] == 4
        engine = parse(WorkerConfig, container["args"], role).engine
        assert (engine.device, engine.tensor_parallel) == ("cuda", 4)
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in spec["volumes"]
    assert "note: 8 GPUs: 1 prefill worker and 1 decode worker, each on 4 GPUs of its own" in said


def worker_pods(objects: Iterator[Any]) -> Iterator[tuple[str, tuple[int, Any]]]:
    for each in objects:
        role = each["metadata"]["name"].removeprefix("baton-")
        if each["kind"] == "Deployment" and role in ("prefill", "decode"):
            yield role, (each["spec"]["replicas"], each["spec"]["template"]["spec"])


def cluster(*gpus: float) -> dict[str, NodeResources]:
    every = [{"CPU": 64.0, "GPU": count, "accelerator_type:H100": 1.0} for count in gpus]
    return {f"n{n}": NodeResources(f"10.0.0.{n}", room, dict(room)) for n, room in enumerate(every)}


def test_ray(tmp_path: Path) -> None:
    asked = parse(UpConfig, command("./baton", "up", "--on", "ray"), "baton up")
    nodes = cluster(8.0)
    config, _ = with_decided_workers(asked, nodes)
    plan = make_plan(config, tmp_path, nodes, "n0", None)
    assert [bundle(plan, role) for role in ("prefill", "decode")] == [{"CPU": 1.0, "GPU": 4.0}] * 2
    assert lacking(list(nodes.values()), process_resources(plan)) == ""
    split = list(cluster(3.0, 5.0).values())
    sentence = lacking(split, process_resources(plan))
    assert sentence.startswith("1 CPU and 4 GPUs wanted on one node, and none has as much free")


FREE: list[tuple[tuple[float, ...], dict[str, int], tuple[int, int]]] = [
    ((8.0, 8.0), {}, (2, 2)),
    ((6.0, 7.0), {}, (1, 1)),
    ((6.0, 2.0), {}, (0, 1)),
    ((8.0,), {"decode": 1}, (1, 1)),
    ((8.0,), {"prefill": 1}, (1, 1)),
]


@pytest.mark.parametrize(("free", "wish", "counts"), FREE)
def test_workers_of_four_fill_a_cluster_node_by_node(
    free: tuple[float, ...], wish: dict[str, Any], counts: tuple[int, int]
) -> None:
    asked = UpConfig(model="owner/model", **wish)
    config, notes = with_decided_workers(
        replace(asked, engine=replace(asked.engine, tensor_parallel=4)), cluster(*free)
    )
    assert (config.prefill, config.decode) == counts
    assert all("4 GPUs of its own" in note for note in notes)


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--tensor-parallel=8",), {"decode-0": "0,1,2,3,4,5,6,7"}),
        (("--prefill-tp=4", "--decode-tp=2"), {"prefill-0": "0,2,4,6", "decode-0": "1,3", "decode-1": "5,7"}),
        (("--tensor-parallel=4", "--decode=1", "--prefill=0"), {"decode-0": "0,2,4,6"}),
    ],
)
def test_other_widths(words: tuple[str, ...], names: dict[str, str], tmp_path: Path) -> None:
    config = check(parse(UpConfig, [*words, "--model=owner/model", "--port=0", "--dashboard-port=0"], "up")).config
    workers = Processes(config, tmp_path, "/m", "unix:///r", tmp_path / "secret").workers()
    assert {worker.name: worker.settings["CUDA_VISIBLE_DEVICES"] for worker in workers} == names


@pytest.mark.usefixtures("eight_gpus")
def test_more_than_the_host_has_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["--model=owner/model", "--port=0", "--dashboard-port=0"]
    assert up([*common, "--tensor-parallel=4", "--prefill=2", "--decode=1"]) == 2
    assert capsys.readouterr().err == (
        "error: --tensor-parallel: 4: 2 prefill workers and 1 decode worker take 12 GPUs, and this host has 8;"
        " --prefill and --decode change the numbers\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert up([*common, "--tensor-parallel=4"]) == 2
    assert "and this host has 2 GPUs: widths across hosts and pipeline parallelism are not" in capsys.readouterr().err
    assert print_manifests(["--gpus=8", "--tensor-parallel=4", "--prefill=2", "--model=owner/model"]) == 2
    assert "--prefill 2 --decode 1 take a GPU for each rank, 12 in all" in capsys.readouterr().err
