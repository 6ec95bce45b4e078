"""compose.yaml is what the description says, as Docker Compose reads it; and the image's list of packages."""

import json
import os
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct, structs

from infra.cli import parse
from infra.config.dashboard import DashboardConfig
from infra.config.engine import EngineConfig
from infra.config.operators import OPERATORS_VARIABLE
from launcher.containers.compose import compose, compose_deployment, host_workers, locations
from launcher.containers.container import IMAGE, TRITON_CACHE
from launcher.containers.monitoring_containers import PROFILE
from launcher.deployment import placed
from launcher.is_ready import is_ready
from launcher.options import ROOT, DeploymentOptions, HostWorkersConfig

COMPOSE_FILE = ROOT / "compose.yaml"
OURS = ("workers", "gateway", "dashboard")


def written() -> Any:
    """The file as it stands, with its variables."""
    return yaml.safe_load(COMPOSE_FILE.read_text())


@pytest.fixture(scope="module")
def composed() -> Any:
    """The configuration with its variables filled in. Without Docker Compose: red in CI, skipped elsewhere."""
    program = shutil.which("docker-compose")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("docker-compose is not installed; .ci/run installs it")
        pytest.skip("docker-compose is not installed (Debian package docker-compose)")
    return read(COMPOSE_FILE)


def read(path: Path, *profiles: str, **settings: str) -> Any:
    """A file as Docker Compose reads it with these profiles and variables. It prints those of other profiles too."""
    program = shutil.which("docker-compose")
    assert program is not None
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **settings}
    result = subprocess.run([program, "-f", str(path), "config"], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = yaml.safe_load(result.stdout)
    chosen = {name for name, one in found["services"].items() if set(one.get("profiles", ())) <= set(profiles)}
    return found | {"services": {name: one for name, one in found["services"].items() if name in chosen}}


def test_whoever_downloads_has_the_users_token(composed: Any) -> None:
    """Compose reads it from the environment; where it is not there, neither is it in a container."""
    told = read(COMPOSE_FILE, HF_TOKEN="hf_mine", HF_ENDPOINT="https://hub.example")["services"]
    for name, service in told.items():
        found = service.get("environment") or {}
        hub = {"HF_TOKEN": "hf_mine", "HF_ENDPOINT": "https://hub.example"} if name in ("workers", "gateway") else {}
        assert {key: value for key, value in found.items() if key.startswith("HF_")} == hub, name
    assert not [
        value for one in composed["services"].values() for value in (one.get("environment") or {}).values() if value
    ]


def test_the_services_are_there(composed: Any) -> None:
    assert set(composed["services"]) == {"redis", *OURS}


def test_a_profile_adds_prometheus_and_grafana_with_the_files_of_the_checkout() -> None:
    made = read(COMPOSE_FILE, PROFILE, BATON_SCHEME="https", BATON_MONITORING_KEY="./keys/dashboard")["services"]
    assert set(made) == {"redis", *OURS, "prometheus", "grafana"}
    for name, wanted in {"prometheus": "/etc/prometheus", "grafana": "/etc/grafana"}.items():
        assert made[name]["read_only"] is True and all("127.0.0.1" in str(port) for port in made[name]["ports"])
        mounted = [str(each).split(":") for each in made[name]["volumes"]]
        files = {target: Path(source) for source, target, *_ in mounted if target.startswith(wanted)}
        assert len(files) == 3 and all(file.is_file() for file in files.values()), files
    volumes = [str(each) for each in made["prometheus"]["volumes"]]
    assert f"{ROOT}/keys/dashboard:/run/secrets/key:ro" in volumes
    (targets,) = [each for each in volumes if each.endswith("/etc/prometheus/targets.json:ro")]
    ((target,), labels) = json.loads(Path(targets.split(":")[0]).read_text())[0].values()
    host, port = target.split(":")
    assert (made[host]["image"], port, labels) == (IMAGE, "8000", {"__scheme__": "https"})


def test_everything_has_a_health_check(composed: Any) -> None:
    assert all(service["healthcheck"]["test"][0] == "CMD" for service in composed["services"].values())


def reserved(services: Any) -> list[dict[str, Any]]:
    """The devices that services reserve."""
    found = [service.get("deploy", {}).get("resources", {}) for service in services.values()]
    return [device for resources in found if resources for device in resources["reservations"]["devices"]]


def test_the_workers_reserve_all_gpus(composed: Any) -> None:
    assert reserved(composed["services"]) == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert "deploy" in composed["services"]["workers"] and "ports" not in composed["services"]["workers"]


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ("2", {"count": 2}),
        ("0,2", {"device_ids": ["0", "2"]}),
        ("3,", {"device_ids": ["3"]}),
        ("GPU-4af0", {"device_ids": ["GPU-4af0"]}),
    ],
)
def test_some_gpus_can_be_reserved(asked: str, device: dict[str, Any], tmp_path: Path) -> None:
    """Their numbers in a container are others, which the user's CUDA_VISIBLE_DEVICES does not mean."""
    with (tmp_path / "compose.yaml").open("w") as file, redirect_stdout(file):
        assert compose(["--gpus", asked]) == 0
    services = read(tmp_path / "compose.yaml", CUDA_VISIBLE_DEVICES="1")["services"]
    assert reserved(services) == [{"driver": "nvidia", **device, "capabilities": ["gpu"]}]
    assert "CUDA_VISIBLE_DEVICES" not in services["workers"]["environment"]
    assert (
        read(COMPOSE_FILE, CUDA_VISIBLE_DEVICES="1")["services"]["workers"]["environment"]["CUDA_VISIBLE_DEVICES"]
        == "1"
    )


@pytest.mark.parametrize(
    ("asked", "said"), [(["--gpus", "0;1"], "--gpus: '0;1'"), (["--gpus", "2", "--device", "cpu"], "--gpus: '2'")]
)
def test_gpus_that_cannot_be_reserved_are_refused(
    asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compose(asked) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_what_is_compiled_and_unpacked_is_kept(composed: Any) -> None:
    """A directory that the image does not make for its user would be root's."""
    for name in ("workers", "gateway"):
        mounted = composed["services"][name]["volumes"]
        pairs = [each.split(":")[:2] if isinstance(each, str) else [each["source"], each["target"]] for each in mounted]
        assert ["cache", "/home/baton/.cache/baton"] in pairs
    made = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "install -d -o baton" in line)
    assert "/home/baton/.cache/baton" in made.split() and "cache" in composed["volumes"]


def test_compiled_kernels_outlive_a_container() -> None:
    assert f"TRITON_CACHE_DIR={TRITON_CACHE}\n" in (ROOT / "Dockerfile").read_text()


def test_the_image_has_operators_where_its_workers_look() -> None:
    made = (ROOT / "Dockerfile").read_text()
    assert "native.compiling.operators --build --level all --out /operators\n" in made
    assert "COPY --from=operators /operators /operators\n" in made and f"{OPERATORS_VARIABLE}=/operators " in made


def test_the_committed_file_is_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose([]) == 0
    assert capsys.readouterr().out == COMPOSE_FILE.read_text(), "./baton compose > compose.yaml"


def test_services_are_told_what_the_description_says(composed: Any) -> None:
    """With every variable at its default; a file of keys without a name is none."""
    for service in compose_deployment("cuda").of("gateway", "dashboard"):
        assert service.settings is not None
        told = structs.replace(placed(service.settings, locations()), api_keys=())
        if isinstance(told, DashboardConfig):
            told = structs.replace(told, gateway="http://gateway:8000")
        assert (service.module, told) == read_command(composed, service.role, type(told))
    assert read_command(composed, "workers", HostWorkersConfig) == ("launcher.host.host_workers", host_workers("cuda"))


def read_command(composed: Any, name: str, config: type[Struct]) -> tuple[str, Struct]:
    """The module of a service's command, and what its options say."""
    python, flag, module, *words = composed["services"][name]["command"]
    assert (python, flag) == ("python", "-m")
    return module, parse(config, words, module)


def test_numbers_of_workers_come_from_the_environment() -> None:
    _, told = read_command(read(COMPOSE_FILE, BATON_PREFILL="2", BATON_DECODE="6"), "workers", HostWorkersConfig)
    assert isinstance(told, HostWorkersConfig) and (told.prefill, told.decode) == (2, 6)


def test_the_workers_supervisor_outlives_its_workers(composed: Any) -> None:
    """Docker's SIGKILL comes after that of the last worker."""
    grace = float(composed["services"]["workers"]["stop_grace_period"].removesuffix("s"))
    assert grace > max(service.grace for service in compose_deployment("cuda").of("prefill", "decode"))


@pytest.mark.parametrize("option", ["quantization", "kv_dtype", "speculation", "draft_model", "medusa", "eagle"])
def test_workers_take_what_they_compute_with_from_the_environment(option: str) -> None:
    """The options are ones that a worker has, and the defaults are its own."""
    default = getattr(EngineConfig(model="m"), option)
    words = written()["services"]["workers"]["command"]
    assert f"--{option.replace('_', '-')}=${{BATON_{option.upper()}:-{default}}}" in words


def test_nobody_reserves_a_gpu_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose(["--device", "cpu"]) == 0
    services = yaml.safe_load(capsys.readouterr().out)["services"]
    assert reserved(services) == [] and "--device=cpu" in services["workers"]["command"]
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


def test_the_workers_cannot_be_scaled(composed: Any) -> None:
    """A container with a name exists once. Two deployments of one host have two names."""
    names = {name: service.get("container_name") for name, service in composed["services"].items()}
    assert {name for name, given in names.items() if given} == {"workers"}
    assert read(COMPOSE_FILE, COMPOSE_PROJECT_NAME="mine")["services"]["workers"]["container_name"] == "mine-workers"


def test_services_write_to_volumes_and_memory_only(composed: Any) -> None:
    for name, service in composed["services"].items():
        assert service["read_only"] is True
        in_memory = {place.partition(":")[0] for place in service.get("tmpfs", ())}
        assert in_memory == ({"/tmp", "/home/baton"} if name in OURS else set())


def test_published_ports_are_on_loopback(composed: Any) -> None:
    ports = [str(port) for service in composed["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 2
    assert all("127.0.0.1" in port for port in ports)


def test_our_services_hold_the_secret_and_no_root(composed: Any) -> None:
    for name in ("workers", "gateway"):
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
