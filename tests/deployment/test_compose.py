"""compose.yaml is what the description says, as Docker Compose reads it; and the image's list of packages."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from infra.cli import parse
from infra.config.dashboard import DashboardConfig
from infra.config.engine import EngineConfig
from infra.config.worker import WorkerConfig
from launcher.compose import compose, described, locations
from launcher.container import TRITON_CACHE
from launcher.deployment import placed
from launcher.is_ready import is_ready
from launcher.options import ROOT, DeploymentOptions

WORKERS = ("prefill", "decode")


def written() -> Any:
    """The file as it stands, with its variables."""
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def composed() -> Any:
    """The configuration with its variables filled in. Without Docker Compose: red in CI, skipped elsewhere."""
    program = shutil.which("docker-compose")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("docker-compose is not installed; .ci/run installs it")
        pytest.skip("docker-compose is not installed (Debian package docker-compose)")
    return configuration(program)


def configuration(program: str, **settings: str) -> Any:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **settings}
    result = subprocess.run(
        [program, "-f", str(ROOT / "compose.yaml"), "config"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


def test_whoever_downloads_has_the_users_token(composed: Any) -> None:
    """Compose reads it from the environment; where it is not there, neither is it in a container."""
    program = shutil.which("docker-compose")
    assert program is not None
    told = configuration(program, HF_TOKEN="hf_mine", HF_ENDPOINT="https://hub.example")["services"]
    for name, service in told.items():
        found = service.get("environment") or {}
        hub = {"HF_TOKEN": "hf_mine", "HF_ENDPOINT": "https://hub.example"} if name in (*WORKERS, "gateway") else {}
        assert found == hub, name
    assert not [
        value for one in composed["services"].values() for value in (one.get("environment") or {}).values() if value
    ]


def test_the_five_services_are_there(composed: Any) -> None:
    assert set(composed["services"]) == {"redis", "prefill", "decode", "gateway", "dashboard"}


def test_everything_has_a_health_check(composed: Any) -> None:
    assert all(service["healthcheck"]["test"][0] == "CMD" for service in composed["services"].values())


def test_workers_reserve_a_gpu_and_can_be_scaled(composed: Any) -> None:
    for name in WORKERS:
        worker = composed["services"][name]
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
        assert "ports" not in worker
        assert "container_name" not in worker


def test_what_is_compiled_and_unpacked_is_kept(composed: Any) -> None:
    """A directory that the image does not make for its user would be root's."""
    for name in (*WORKERS, "gateway"):
        mounted = composed["services"][name]["volumes"]
        pairs = [each.split(":")[:2] if isinstance(each, str) else [each["source"], each["target"]] for each in mounted]
        assert ["cache", "/home/baton/.cache/baton"] in pairs
    made = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "install -d -o baton" in line)
    assert "/home/baton/.cache/baton" in made.split() and "cache" in composed["volumes"]


def test_compiled_kernels_outlive_a_container() -> None:
    assert f"TRITON_CACHE_DIR={TRITON_CACHE}\n" in (ROOT / "Dockerfile").read_text()


def test_the_committed_file_is_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose([]) == 0
    assert capsys.readouterr().out == (ROOT / "compose.yaml").read_text(), "./baton compose > compose.yaml"


def test_services_are_told_what_the_description_says(composed: Any) -> None:
    """With every variable at its default; a file of keys without a name is none."""
    for service in described("cuda").services:
        if service.settings is None:
            continue
        python, flag, module, *words = composed["services"][service.role]["command"]
        assert (python, flag, module) == ("python", "-m", service.module)
        told = placed(service.settings, locations(service))
        if isinstance(told, DashboardConfig):
            told = structs.replace(told, gateway="http://gateway:8000")
        if not isinstance(told, WorkerConfig):
            told = structs.replace(told, api_keys=())
        assert parse(type(told), words, module) == told


@pytest.mark.parametrize("option", ["quantization", "kv_dtype", "speculation", "draft_model", "medusa", "eagle"])
def test_workers_take_what_they_compute_with_from_the_environment(option: str) -> None:
    """The options are ones that a worker has, and the defaults are its own."""
    default = getattr(EngineConfig(model="m"), option)
    for name in WORKERS:
        words = written()["services"][name]["command"]
        assert f"--{option.replace('_', '-')}=${{BATON_{option.upper()}:-{default}}}" in words


def test_nobody_reserves_a_gpu_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose(["--device", "cpu"]) == 0
    services = yaml.safe_load(capsys.readouterr().out)["services"]
    assert not any("deploy" in service for service in services.values())
    assert all("--device=cpu" in services[name]["command"] for name in WORKERS)
    assert compose(["--device", "tpu"]) == 2
    assert capsys.readouterr().err.startswith("error: --device: 'tpu'")


def test_images_have_a_version(composed: Any) -> None:
    for service in composed["services"].values():
        _, colon, version = service["image"].partition(":")
        assert colon and version[0].isdigit()


def test_redis_keeps_its_data_and_publishes_no_port(composed: Any) -> None:
    redis = composed["services"]["redis"]
    assert "ports" not in redis
    assert "--appendonly yes" in " ".join(redis["command"])
    bound = int(redis["command"][redis["command"].index("--maxmemory") + 1])
    assert bound >= DeploymentOptions().store_bytes + (256 << 20)
    assert redis["image"].startswith("redis:")


def test_published_ports_are_on_loopback(composed: Any) -> None:
    ports = [str(port) for service in composed["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 2
    assert all("127.0.0.1" in port for port in ports)


def test_our_services_hold_the_secret_and_no_root(composed: Any) -> None:
    for name in (*WORKERS, "gateway"):
        service = composed["services"][name]
        assert service["secrets"] == [{"source": "baton"}]
        assert "--secret-file=/run/secrets/baton" in service["command"]
        assert service["user"] == "1000"
    assert "\nUSER baton\n" in (ROOT / "Dockerfile").read_text()


def test_every_package_of_ours_is_in_the_image() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "testing", "benchmarks"}
    assert packages <= kept


def test_health_is_a_ready_status_of_a_living_process(tmp_path: Path) -> None:
    status = tmp_path / "status"
    assert not is_ready(str(status))
    for stage, pid, ready in (("loading", os.getpid(), False), ("ready", os.getpid(), True), ("ready", 0, False)):
        status.write_text(f'{{"stage": "{stage}", "percent": 100, "pid": {pid or 2**22 + 1}}}')
        assert is_ready(str(status)) is ready
    assert not is_ready("http://127.0.0.1:1/health")
