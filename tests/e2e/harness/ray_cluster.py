"""A Ray cluster of several nodes on this machine, and `./baton` commands that are about a deployment on it."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from prometheus_client.parser import text_string_to_metric_families
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

from benchmarks.processes.python_path import python_path
from launcher.on_ray.control.controller import CONTROLLER_NAME
from launcher.on_ray.overview import ActorReport, MemberState, Overview
from launcher.on_ray.reports import Reports
from launcher.stages import StageDisplay
from tests.e2e.harness.forks import ROOT
from tests.waiting import DEADLINE_S, LONG_DEADLINE_S, alive, children, wait_until

NAMESPACE = "tested"
SYSTEM = {"health_check_period_ms": 300, "health_check_initial_delay_ms": 0}  # so that a node's death is soon noticed


@contextmanager
def ray_cluster(head_cpus: int, node_cpus: Sequence[int]) -> Iterator["RayCluster"]:
    """Starts a cluster whose nodes have so many CPUs, connects this process, and ends every process of it."""
    before = dict(os.environ)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    own = Path(tempfile.mkdtemp(prefix="ray-"))  # each node has its own directory, as it would on its own machine
    os.environ["TMPDIR"] = str(own)  # what else Ray, and ours, write: another cluster on this machine is not touched
    (own / "ray").mkdir()
    head = {"num_cpus": head_cpus, "include_dashboard": False, "_system_config": SYSTEM, "temp_dir": str(own / "0")}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        places = enumerate(node_cpus, 1)
        nodes = [cluster.add_node(num_cpus=cpus, temp_dir=str(own / str(n)), wait=False) for n, cpus in places]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        yield RayCluster(cluster, nodes, own)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(own, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


class RayCluster:
    def __init__(self, cluster: Any, nodes: list[Any], temporary: Path) -> None:
        self._cluster = cluster
        self.temporary = temporary  # where services on its nodes have their directories
        self.nodes = nodes
        self.address: str = cluster.address

    def begin(self, directory: Path, *words: str, namespace: str = NAMESPACE) -> subprocess.Popen[str]:
        place = ["--ray-address", self.address, "--ray-namespace", namespace]
        environment = {**os.environ, "PYTHONPATH": python_path(), "XDG_STATE_HOME": str(directory)}
        command = [sys.executable, "-P", "-m", "launcher", words[0], *place, *words[1:]]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def baton(self, directory: Path, *words: str, namespace: str = NAMESPACE) -> tuple[int, str, str]:
        """Runs a command; returns its exit status and what it wrote to stdout and stderr."""
        with self.begin(directory, *words, namespace=namespace) as process:
            out, error = process.communicate(timeout=LONG_DEADLINE_S)
        return process.returncode, out, error

    def overview(self) -> Overview:
        return Reports(ray.get_actor(CONTROLLER_NAME, NAMESPACE), StageDisplay(io.StringIO())).ask()

    def services(self) -> dict[str, MemberState]:
        return {service.name: service for service in self.overview().services}

    def wait_until_ready(self, *names: str) -> None:
        """Waits until these services' own actors say that they serve, and the controller does."""

        def ready() -> bool:
            services = self.services()
            return all(self.stage(name) == "ready" and services[name].stage == "ready" for name in names)

        wait_until(ready, f"{', '.join(names)} to be ready")

    def stage(self, name: str) -> str:
        """Returns the stage of a service as its actor says it; while it has no actor, that."""
        try:
            return self._look(name).stage
        except RayError as error:
            return type(error).__name__

    def _look(self, name: str) -> ActorReport:
        actor: Any = ray.get_actor(name, NAMESPACE)
        answer: Any = ray.get(actor.report.remote(0), timeout=DEADLINE_S)
        assert isinstance(answer, ActorReport)
        return answer

    def change(self, call: str, role: str) -> str:
        name: str = ray.get(getattr(ray.get_actor(CONTROLLER_NAME, NAMESPACE), call).remote(role), timeout=DEADLINE_S)
        return name

    def node_of(self, name: str) -> str:
        return self._look(name).node

    def kill_node(self, node_id: str) -> None:
        """Kills a node's raylet, as nothing can prevent; its processes end with it."""
        (node,) = [node for node in self.nodes if node.node_id == node_id]
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_called(name: str) -> list[int]:
    """Returns the ids of this cluster's processes that Ray has given this name, of up to 15 letters."""
    ours = children(os.getpid())  # its nodes are processes of this one, and all others are theirs
    return [pid for pid in ours if _read(Path(f"/proc/{pid}/comm")) == f"{name}\n" and alive(pid)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended


def counted(page: str, name: str) -> float:
    lines = [line for line in page.splitlines() if line.startswith(name)]
    return sum(one.value for family in text_string_to_metric_families("\n".join(lines)) for one in family.samples)
