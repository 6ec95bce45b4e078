"""What a process finds on its node, and what is missing there."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError
from launcher.deployment import describe
from launcher.instance.held_file import HeldFile
from launcher.on_ray.code import COPIED_PACKAGES, runtime_env
from launcher.on_ray.node import process
from launcher.on_ray.node.check import complaint, versions
from launcher.on_ray.node.process import OWNER_FILE, make_directory, make_process, node_environment, sweep
from launcher.on_ray.order import Order
from launcher.options import DEMO_MODEL, ROOT, UpConfig


def order(**more: Any) -> Order:
    config = UpConfig(prefill=0, decode=1, device="cpu")
    (service,) = describe(config, host="127.0.0.1", port=8000, dashboard_port=0).of("decode")
    fields: dict[str, Any] = {"name": "decode-0", "deployment": "tested", "silent_seconds": 0.0}
    return Order(**fields, service=service, files={"secret": "s"}, **more)


def test_a_process_listens_on_its_node_and_finds_its_files(own_directories: Path) -> None:
    run = make_directory(order())
    assert stat.S_IMODE(run.stat().st_mode) == 0o700 and stat.S_IMODE((run / "secret").stat().st_mode) == 0o600
    made = make_process(order(), run, "10.0.0.7")
    assert "--host=10.0.0.7" in made.command and f"--secret-file={run / 'secret'}" in made.command
    assert f"--busy-page={run.parent / 'busy'}" in made.command
    (run / "of an earlier life").touch()
    assert [path.name for path in make_directory(order()).iterdir()] == ["secret"]


def test_a_directory_of_another_kind_is_refused(own_directories: Path) -> None:
    (own_directories / "elsewhere").mkdir()
    (own_directories / "baton-ray-tested").symlink_to(own_directories / "elsewhere")
    with pytest.raises(ConfigError, match="is another user's"):
        make_directory(order())


def test_directories_of_dead_deployments_are_removed(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MIN_AGE_S", -1.0)
    for name in ("dead", "living"):
        (own_directories / f"baton-ray-{name}" / "decode-0").mkdir(parents=True)
    with HeldFile(own_directories / "baton-ray-living" / "decode-0" / OWNER_FILE, "1"):
        sweep(own_directories)
        assert [path.name for path in own_directories.iterdir()] == ["baton-ray-living"]


def test_what_ray_has_set_for_itself_is_not_the_services(tmp_path: Path) -> None:
    inherited = {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/home"}
    made = node_environment(inherited, order(), tmp_path)
    assert not {"RAY_JOB_ID", "OMP_NUM_THREADS"} & set(made)
    assert (made["CUDA_VISIBLE_DEVICES"], made["CUDA_DEVICE_ORDER"], made["HOME"]) == ("3", "PCI_BUS_ID", "/home")


def test_a_service_has_the_hubs_token_of_its_node_or_else_of_whoever_deployed_it(tmp_path: Path) -> None:
    ours = order(hub={"HF_TOKEN": "deployed", "HF_ENDPOINT": "https://hub.example"})
    made = node_environment({"HF_TOKEN": "node"}, ours, tmp_path)
    assert (made["HF_TOKEN"], made["HF_ENDPOINT"]) == ("node", "https://hub.example")
    assert node_environment({}, ours, tmp_path)["HF_TOKEN"] == "deployed"


def test_a_node_complains_of_what_it_lacks(tmp_path: Path) -> None:
    assert complaint(versions(), DEMO_MODEL, [], "auto") == ""
    assert "has torch" in complaint({**versions(), "torch": "1.0"}, DEMO_MODEL, [], "auto")
    assert complaint(versions(), str(tmp_path / "none"), [], "auto").startswith("--model: ")
    missing = complaint(versions(), DEMO_MODEL, [("--medusa", "/nowhere")], "auto")
    assert missing == "--medusa: '/nowhere': there is no such file or directory"


def test_the_code_goes_to_the_nodes_and_nothing_else() -> None:
    env = runtime_env(ROOT)
    out = {pattern.removeprefix("/") for pattern in env["excludes"]}
    assert {"tests", "demo_model", ".venv"} <= out and not out & set(COPIED_PACKAGES)
    assert set(os.listdir(ROOT)) - out == set(COPIED_PACKAGES) & set(os.listdir(ROOT))
