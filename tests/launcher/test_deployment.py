"""The command lines of the services: what the user chose reaches them, and the workers on a GPU share it."""

import os
from pathlib import Path

import pytest
from msgspec.structs import asdict

from core.cli import parse
from core.config import DashboardConfig, EngineOptions, GatewayConfig, TransferOptions, WorkerConfig
from core.listening import http_url
from launcher.deployment import Deployment, environment, stop_order
from launcher.gpus import visible_gpus, worker_devices
from launcher.options import DEMO_MODEL, DEMO_NAME, UpConfig
from launcher.service import Service

EVERYTHING = UpConfig(
    model="/m",
    prefill=2,
    decode=1,
    device="cpu",
    host="0.0.0.0",
    port=1234,
    dashboard_port=1235,
    log_level="debug",
    engine=EngineOptions(
        dtype="fp32",
        cpu_backend="torch",
        cuda_backend="torch",
        quantization="int8",
        max_model_len=99,
        kv_memory=1 << 20,
        host_kv_memory=3 << 20,
        host_kv_directory="/blocks",
        block_size=32,
        step_ms=12.5,
    ),
    transfer=TransferOptions(kv_transport="tcp", kv_security="none", kv_codec="int8"),
)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(EVERYTHING, tmp_path, "/m", "unix:///r", tmp_path / "secret")


def options(service: Service) -> list[str]:
    """What stands behind `python -P -m module`."""
    return list(service.command[4:])


def test_workers_are_told_everything(deployment: Deployment, tmp_path: Path) -> None:
    workers = deployment.workers()
    assert [worker.name for worker in workers] == ["prefill-0", "prefill-1", "decode-0"]
    assert [worker.command[3] for worker in workers] == ["prefill_service", "prefill_service", "decode_service"]
    config = parse(WorkerConfig, options(workers[0]), "prefill_service")
    assert (config.engine.model, config.engine.device) == ("/m", "cpu")
    for passed, told in ((config.engine, EVERYTHING.engine), (config.transfer, EVERYTHING.transfer)):
        assert asdict(told).items() <= asdict(passed).items()
        usual = type(told)()
        assert all(value != getattr(usual, name) for name, value in asdict(told).items())  # so that each is seen
    assert (config.store.redis, config.store.secret_file) == ("unix:///r", str(tmp_path / "secret"))
    assert (config.log_level, config.host) == ("debug", "127.0.0.1")
    pages = {parse(WorkerConfig, options(worker), "worker").busy_page for worker in workers}
    assert pages == {str(tmp_path / "busy")}
    assert len({worker.status_file for worker in workers}) == 3


def test_a_directory_is_named_from_everywhere(tmp_path: Path) -> None:
    config = UpConfig(device="cpu", engine=EngineOptions(host_kv_directory="blocks"))
    worker = Deployment(config, tmp_path, "/m", "unix:///r", tmp_path / "secret").workers()[0]
    there = parse(WorkerConfig, options(worker), "prefill_service").engine.host_kv_directory
    assert there == str(Path("blocks").resolve())


def test_the_gateway_and_the_dashboard_are_told_everything(deployment: Deployment) -> None:
    gateway = parse(GatewayConfig, options(deployment.gateway()), "gateway")
    assert (gateway.host, gateway.port, gateway.max_model_len, gateway.model_name) == ("0.0.0.0", 1234, 99, "")
    dashboard = parse(DashboardConfig, options(deployment.dashboard()), "dashboard")
    assert (dashboard.host, dashboard.port, dashboard.gateway) == ("0.0.0.0", 1235, "http://127.0.0.1:1234")


def test_the_demo_model_has_a_name(tmp_path: Path) -> None:
    deployment = Deployment(UpConfig(), tmp_path, DEMO_MODEL, "unix:///r", tmp_path / "secret")
    assert parse(GatewayConfig, options(deployment.gateway()), "gateway").model_name == DEMO_NAME


def test_the_gateway_stops_first_and_redis_last() -> None:
    order = stop_order(EVERYTHING)
    assert order[0] == ["gateway"]
    assert order[-1] == ["redis"]
    assert sorted(order[1]) == ["dashboard", "decode-0", "prefill-0", "prefill-1"]


def test_the_users_environment_wins() -> None:
    given = {"GOMP_SPINCOUNT": "7", "PYTHONPATH": "/theirs", "TMPDIR": "/tmp", "OMP_WAIT_POLICY": "x"}
    seen = environment(given, Path("/ours"), Path("/run/mine"))
    assert seen["TMPDIR"] == "/run/mine"
    assert (seen["GOMP_SPINCOUNT"], seen["PYTHONPATH"], seen["OMP_WAIT_POLICY"]) == ("7", "/ours", "x")
    assert "OMP_WAIT_POLICY" not in environment({}, Path("/ours"), Path("/run/mine"))


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("10.0.0.1", "http://10.0.0.1:1")]
)
def test_urls_can_be_opened(host: str, url: str) -> None:
    assert http_url(host, 1) == url


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: a name (UUID: GPU-$i)"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("launcher.gpus.version", lambda name: "2.13.0")


@pytest.mark.usefixtures("four_gpus")
def test_workers_spread_over_gpus_and_share_their_memory() -> None:
    assert worker_devices("auto", 2) == [("cuda:0", 0.9), ("cuda:1", 0.9)]
    assert [device for device, _ in worker_devices("cuda", 5)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]
    assert [share for _, share in worker_devices("cuda", 5)] == [0.45, 0.9, 0.9, 0.9, 0.45]
    assert worker_devices("cpu", 2) == [("cpu", None)] * 2


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("chosen", "count"), [("0,2", 2), ("", 0), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3,4", 4)])
def test_hidden_gpus_are_not_counted(chosen: str, count: int) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == count


@pytest.mark.usefixtures("four_gpus")
def test_a_cpu_build_of_torch_does_not_use_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.gpus.version", lambda name: "2.13.0+cpu")
    assert worker_devices("auto", 1) == [("cpu", None)]
