"""The command lines of an instance's processes: what the user chose reaches them; the workers on a GPU share it."""

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from checkpoints.model_size import ModelSize
from infra.cli import parse
from infra.config.dashboard import DashboardConfig
from infra.config.engine import EngineOptions
from infra.config.gateway import GatewayConfig
from infra.config.transfer import TransferOptions
from infra.config.worker import WorkerConfig
from infra.keys.key_file import change_keys
from infra.network.listening import is_local
from launcher.commands.up import check, up
from launcher.devices.gpus import Placement, placements, visible_gpus
from launcher.devices.worker_counts import UNSPLIT_NOTE, expected_split
from launcher.host.process import Process
from launcher.host.processes import Processes, environment, host_deployment
from launcher.options import DEMO_MODEL, DEMO_NAME, UpConfig
from launcher.stages import StageDisplay
from tests.nvidia_smi import write_nvidia_smi

EVERYTHING = UpConfig(
    model="/m",
    prefill=2,
    decode=1,
    device="cpu",
    host="0.0.0.0",
    port=1234,
    dashboard_port=1235,
    log_level="debug",
    store_ttl=12.5,
    store_bytes=1 << 20,
    engine=EngineOptions(
        dtype="fp32",
        cpu_backend="torch",
        cuda_backend="torch",
        quantization="int8",
        activations="8bit",
        kv_dtype="fp8",
        max_model_len=99,
        kv_memory=1 << 20,
        host_kv_memory=3 << 20,
        host_kv_directory="/blocks",
        block_size=32,
        max_batch_tokens=77,
        step_ms=12.5,
        logprobs_mode="processed_logprobs",
        tensor_parallel=2,
        prefill_tp=4,
        decode_tp=1,
        deterministic=True,
        model_impl="transformers",
        pooling="mean",
        score_tokens="no,yes",
        matryoshka=True,
        trust_remote_code=True,
        speculation="auto",
        speculative_tokens=5,
        speculative_answers=9,
        acceptance="typical",
        draft_model="some/draft",
        medusa="/heads/medusa",
        eagle="/heads/eagle",
        lora=("sql=/adapters/sql", "law=/adapters/law"),
        max_loras=3,
        max_lora_rank=32,
        lora_root="/adapters",
        allow_lora_loading=True,
    ),
    transfer=TransferOptions(
        kv_transport="tcp", kv_directory="/kv", kv_security="none", kv_codec="int8", link_connections=2
    ),
)


@pytest.fixture
def made(tmp_path: Path) -> Processes:
    return Processes(EVERYTHING, tmp_path, "/m", "unix:///r", tmp_path / "secret")


def options(service: Process) -> list[str]:
    return list(service.command[4:])


def test_workers_are_told_everything(made: Processes, tmp_path: Path) -> None:
    workers = made.workers()
    assert [worker.name for worker in workers] == ["prefill-0", "prefill-1", "decode-0"]
    assert [worker.command[3] for worker in workers] == ["prefill_service", "prefill_service", "decode_service"]
    config = parse(WorkerConfig, options(workers[0]), "prefill_service")
    assert (config.engine.model, config.engine.device) == ("/m", "cpu")
    for passed, told in ((config.engine, EVERYTHING.engine), (config.transfer, EVERYTHING.transfer)):
        assert asdict(told).items() <= asdict(passed).items()
        usual = type(told)()
        assert all(value != getattr(usual, name) for name, value in asdict(told).items())  # so that each is seen
    assert (config.store.redis, config.store.secret_file) == ("unix:///r", str(tmp_path / "secret"))
    assert (config.log_level, config.place.host) == ("debug", "")
    pages = {parse(WorkerConfig, options(worker), "worker").busy_page for worker in workers}
    assert pages == {str(tmp_path / "busy")}
    assert len({worker.status_file for worker in workers}) == 3


def test_workers_are_dealt_among_numa_nodes_with_a_page_of_busy_workers_each(tmp_path: Path) -> None:
    config = UpConfig(prefill=2, decode=2, device="cpu")
    workers = Processes(config, tmp_path, "/m", "unix:///r", tmp_path / "secret", (0, 3)).workers()
    told = {worker.name: parse(WorkerConfig, options(worker), "worker") for worker in workers}
    assert [(name, config.numa_node, Path(config.busy_page).name) for name, config in told.items()] == [
        ("prefill-0", 0, "busy-0"),
        ("prefill-1", 3, "busy-3"),
        ("decode-0", 0, "busy-0"),
        ("decode-1", 3, "busy-3"),
    ]


def test_a_directory_is_named_from_everywhere(tmp_path: Path) -> None:
    transfer = TransferOptions(kv_directory="sockets")
    config = UpConfig(
        prefill=1, decode=1, device="cpu", engine=EngineOptions(host_kv_directory="blocks"), transfer=transfer
    )
    worker = Processes(config, tmp_path, "/m", "unix:///r", tmp_path / "secret").workers()[0]
    told = parse(WorkerConfig, options(worker), "prefill_service")
    assert told.engine.host_kv_directory == str(Path("blocks").resolve())
    assert told.transfer.kv_directory == str(Path("sockets").resolve())


def test_the_gateway_and_the_dashboard_are_told_everything(made: Processes) -> None:
    gateway = parse(GatewayConfig, options(made.gateways()[0]), "gateway")
    assert (gateway.host, gateway.port, gateway.max_model_len, gateway.served_model_name) == ("0.0.0.0", 1234, 99, "")
    assert (gateway.store_ttl, gateway.store_bytes) == (12.5, 1 << 20)
    dashboard = parse(DashboardConfig, options(*made.dashboard()), "dashboard")
    assert (dashboard.host, dashboard.port, dashboard.gateway) == ("0.0.0.0", 1235, "http://127.0.0.1:1234")


def test_keys_and_tls_reach_the_gateway_and_the_dashboard(tmp_path: Path) -> None:
    config = UpConfig(
        prefill=1,
        decode=1,
        api_keys=("/k/a.json", "/k/b.json"),
        tls_cert="/t/cert",
        tls_key="/t/key",
        slo="ttft=1s",
        handoff="always",
        port=5,
    )
    made = Processes(config, tmp_path, "/m", "unix:///r", tmp_path / "secret")
    gateway = parse(GatewayConfig, options(made.gateways()[0]), "gateway")
    assert gateway.api_keys == ("/k/a.json", "/k/b.json", str(tmp_path / "api-keys.json"))
    assert (gateway.tls_cert, gateway.tls_key, gateway.slo) == ("/t/cert", "/t/key", "ttft=1s")
    assert gateway.handoff == "always"
    dashboard = parse(DashboardConfig, options(*made.dashboard()), "dashboard")
    assert dashboard.api_keys == ("/k/a.json", "/k/b.json"), "whose owners may look, and not the instance's own"
    assert (dashboard.tls_cert, dashboard.tls_key, dashboard.gateway) == ("/t/cert", "/t/key", "https://127.0.0.1:5")
    assert (dashboard.gateway_cert, dashboard.api_key_file) == ("/t/cert", str(tmp_path / "api-key"))


@pytest.mark.parametrize(
    ("asked", "lines"), [((), 0), (("--host", "0.0.0.0"), 1), (("--host", "0.0.0.0", "--api-keys", "KEYS"), 0)]
)
def test_an_open_host_without_keys_is_warned_of_in_one_line(
    asked: tuple[str, ...], lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_keys(tmp_path / "keys.json", lambda keys: [], create=True)
    output = StringIO()
    monkeypatch.setattr("launcher.commands.up.StageDisplay", lambda: StageDisplay(output))
    monkeypatch.setattr("launcher.commands.up._run", lambda *given: 0)
    given = [word.replace("KEYS", str(tmp_path / "keys.json")) for word in asked]
    assert up([*given, "--port", "0", "--dashboard-port", "0", "--prefill", "1", "--device", "cpu"]) == 0
    said = output.getvalue().splitlines()
    assert len(said) == lines and all("--host 0.0.0.0: whoever reaches" in line for line in said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--api-keys", "/nothing/keys"), "error: --api-keys: '/nothing/keys'"),
        (("--tls-cert", "/nothing/cert"), "error: --tls-cert: '/nothing/cert': it goes with --tls-key"),
        (("--tls-cert", "/nothing/cert", "--tls-key", "/nothing/key"), "error: --tls-cert: '/nothing/cert'"),
        (("--slo", "soon"), "error: --slo: 'soon'"),
    ],
)
def test_bad_keys_certificates_and_objectives_stop_before_anything_starts(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up([*options, "--port", "0", "--dashboard-port", "0", "--prefill", "1", "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(said) and told.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_a_loopback_is_local(host: str, local: bool) -> None:
    assert is_local(host) == local


def test_the_demo_model_has_a_name(tmp_path: Path) -> None:
    made = Processes(UpConfig(prefill=1, decode=1), tmp_path, DEMO_MODEL, "unix:///r", tmp_path / "secret")
    assert parse(GatewayConfig, options(made.gateways()[0]), "gateway").served_model_name == DEMO_NAME


def test_several_gateways_share_the_port_and_nothing_else(tmp_path: Path) -> None:
    several = replace(EVERYTHING, gateways=3)
    gateways = Processes(several, tmp_path, "/m", "unix:///r", tmp_path / "secret").gateways()
    assert (
        [one.name for one in gateways]
        == host_deployment(several).stop_order()[0]
        == ["gateway-0", "gateway-1", "gateway-2"]
    )
    told = [parse(GatewayConfig, options(one), "gateway") for one in gateways]
    assert {one.port for one in told} == {1234}
    assert len({one.share_port for one in told}) == 1 and told[0].share_port
    assert len({one.status_file for one in told}) == 3


def test_the_gateway_stops_first_and_redis_last() -> None:
    order = host_deployment(EVERYTHING).stop_order()
    assert order[0] == ["gateway"]
    assert order[-1] == ["redis"]
    assert sorted(order[1]) == ["dashboard", "decode-0", "prefill-0", "prefill-1"]


def test_the_users_environment_wins() -> None:
    given = {"GOMP_SPINCOUNT": "7", "PYTHONPATH": "/theirs", "TMPDIR": "/tmp", "OMP_WAIT_POLICY": "x"}
    seen = environment(given, Path("/ours"), Path("/run/mine"))
    assert seen["TMPDIR"] == "/run/mine"
    assert (seen["GOMP_SPINCOUNT"], seen["PYTHONPATH"], seen["OMP_WAIT_POLICY"]) == ("7", "/ours", "x")
    assert "OMP_WAIT_POLICY" not in environment({}, Path("/ours"), Path("/run/mine"))


HasGPUs = Callable[[int], None]


@pytest.fixture
def has_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HasGPUs:
    """Makes the host one with so many GPUs, as the driver's program lists them."""

    def have(count: int) -> None:
        write_nvidia_smi(tmp_path, count)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("launcher.devices.gpus.version", lambda name: "2.13.0")

    return have


@pytest.fixture
def four_gpus(has_gpus: HasGPUs) -> None:
    has_gpus(4)


@pytest.mark.usefixtures("four_gpus")
def test_workers_spread_over_gpus_and_share_their_memory() -> None:
    assert [place.share for place in placements("auto", [1, 1])] == [0.9, 0.9]
    assert [place.share for place in placements("cuda", [1] * 5)] == [0.45, 0.9, 0.9, 0.9, 0.45]
    assert [place.device for place in placements("cuda", [1] * 5)] == ["cuda"] * 5
    assert placements("cpu", [1, 1]) == [Placement("cpu")] * 2


@pytest.mark.usefixtures("four_gpus")
def test_each_worker_sees_one_gpu(tmp_path: Path) -> None:
    """Or its process would hold a context on GPU 0 as well."""
    config = UpConfig(prefill=2, decode=3)
    workers = Processes(config, tmp_path, "/m", "unix:///r", tmp_path / "secret").workers()
    assert [worker.settings["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "1", "2", "3", "0"]
    assert {worker.settings["CUDA_DEVICE_ORDER"] for worker in workers} == {"PCI_BUS_ID"}, "as nvidia-smi counts"
    assert {parse(WorkerConfig, options(worker), "worker").engine.device for worker in workers} == {"cuda"}


@pytest.mark.usefixtures("four_gpus")
def test_a_users_choice_of_gpus_is_divided_as_it_is() -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "GPU-3, GPU-1,-1,GPU-0"}
    settings = [place.settings for place in placements("cuda", [1] * 3, chosen)]
    assert settings == [{"CUDA_VISIBLE_DEVICES": name} for name in ("GPU-3", "GPU-1", "GPU-3")]


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("chosen", "seen"),
    [("0,2", ["0", "2"]), ("", []), ("-1", []), ("1,-1,2", ["1"]), ("0,1,2,3,4", ["0", "1", "2", "3"])],
)
def test_hidden_gpus_are_not_seen(chosen: str, seen: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == seen


@pytest.mark.usefixtures("four_gpus")
def test_a_cpu_build_of_torch_does_not_use_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.devices.gpus.version", lambda name: "2.13.0+cpu")
    assert placements("auto", [1]) == [Placement("cpu")]


@pytest.mark.parametrize(
    ("gpus", "asked", "roles"),
    [
        (1, (), ["decode-0"]),
        (1, ("--prefill", "1"), ["prefill-0", "decode-0"]),
        (2, (), ["prefill-0", "decode-0"]),
        (2, ("--prefill", "0", "--decode", "2"), ["decode-0", "decode-1"]),
        (2, ("--prefill", "0"), ["decode-0", "decode-1"]),
        (2, ("--decode", "2"), ["decode-0", "decode-1"]),
        (3, ("--prefill", "1"), ["prefill-0", "decode-0", "decode-1"]),
        (3, ("--decode", "1"), ["prefill-0", "prefill-1", "decode-0"]),
        (8, ("--prefill", "2", "--decode", "1"), ["prefill-0", "prefill-1", "decode-0"]),
        (0, (), ["prefill-0", "decode-0"]),
        (1, ("--device", "cpu"), ["prefill-0", "decode-0"]),
    ],
)
def test_a_number_that_is_left_open_fills_the_gpus(
    gpus: int, asked: tuple[str, ...], roles: list[str], tmp_path: Path, has_gpus: HasGPUs
) -> None:
    has_gpus(gpus)
    config = check(parse(UpConfig, [*asked, "--port", "0", "--dashboard-port", "0"], "baton up")).config
    workers = Processes(config, tmp_path, DEMO_MODEL, "unix:///r", tmp_path / "secret").workers()
    assert [worker.name for worker in workers] == roles
    assert host_deployment(config).stop_order()[1] == roles
    if roles == ["decode-0"]:
        assert parse(WorkerConfig, options(workers[0]), "decode_service").engine.gpu_memory_utilization == 0.9


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_each_gpu_has_one_worker(gpus: int, tmp_path: Path, has_gpus: HasGPUs) -> None:
    has_gpus(gpus)
    checked = check(parse(UpConfig, ["--port", "0", "--dashboard-port", "0"], "baton up"))
    config, (note,) = checked.config, checked.notes or [""]
    workers = Processes(config, tmp_path, DEMO_MODEL, "unix:///r", tmp_path / "secret").workers()
    assert [worker.settings["CUDA_VISIBLE_DEVICES"] for worker in workers] == [str(gpu) for gpu in range(gpus)]
    told = [parse(WorkerConfig, options(worker), "worker").engine for worker in workers]
    assert {one.gpu_memory_utilization for one in told} == {0.9} and {one.device for one in told} == {"cuda"}
    assert note.startswith("one GPU: " if gpus == 1 else f"{gpus} GPUs: {config.prefill} prefill worker")


def test_a_mixture_of_experts_decodes_on_more_gpus_than_a_dense_model() -> None:
    """It reads all experts for each step, and multiplies a prompt's token by few."""
    dense = ModelSize(parameters=7.5e9, weights_bytes=16e9, token_bytes=131_072)
    mixture = ModelSize(parameters=3e9, weights_bytes=61e9, token_bytes=98_304)
    assert expected_split("NVIDIA H100 80GB HBM3", dense, 8) == (3, 5)
    assert expected_split("NVIDIA H100 80GB HBM3", mixture, 8) == (1, 7)


FILLED = "each on a GPU of its own; --prefill and --decode change the numbers"


@pytest.mark.parametrize(
    ("gpus", "asked", "said"),
    [
        (1, (), [UNSPLIT_NOTE]),
        (1, ("--prefill", "0"), []),
        (1, ("--prefill", "1"), []),
        (3, (), [f"3 GPUs: 1 prefill worker and 2 decode workers, {FILLED}"]),
        (2, ("--prefill", "0"), [f"2 GPUs: 2 decode workers without prefill workers, {FILLED}"]),
        (
            8,
            ("--prefill", "2", "--decode", "4"),
            [f"8 GPUs: 2 prefill workers and 4 decode workers, {FILLED}; 2 GPUs without work: 6, 7"],
        ),
        (2, ("--prefill", "1", "--decode", "2"), []),
        (0, (), []),
    ],
)
def test_the_start_says_what_the_gpus_do(
    gpus: int,
    asked: tuple[str, ...],
    said: list[str],
    has_gpus: HasGPUs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_gpus(gpus)
    output = StringIO()
    monkeypatch.setattr("launcher.commands.up.StageDisplay", lambda: StageDisplay(output))
    monkeypatch.setattr("launcher.commands.up._run", lambda *given: 0)  # nothing is started: there is no GPU
    assert up([*asked, "--port", "0", "--dashboard-port", "0"]) == 0
    assert output.getvalue().splitlines() == said
