"""Prints packages, programs and the GPU of a machine, and what is missing: `python -m benchmarks.gpu_hour.versions`.

The status is 1 where PyTorch finds no GPU, or Triton does not start on it; then no other stage can work.
"""

import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu_hour.packages import ENGINE, HANDOFF, OLDEST_VERSIONS, PRESENT_PACKAGES, SYSTEM, missing

COMPILERS = ("cc", "gcc", "clang")
PROGRAMS = ("nvcc", "ncu", "compute-sanitizer", "nvidia-smi")
NVIDIA_SMI_TIMEOUT_S = 10.0


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def software() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} at {sys.executable}"
    yield from ((package, installed(package)) for package in PRESENT_PACKAGES)
    compiler = next(filter(None, map(shutil.which, COMPILERS)), "none: Triton needs one when it starts")
    yield "C compiler", compiler
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    yield "Python's headers", str(headers) if headers.exists() else f"no {headers}: Triton needs it when it starts"
    yield "programs", ", ".join(f"{name}: {shutil.which(name) or 'none'}" for name in PROGRAMS)
    for what, wheels in (("engine", ENGINE), ("handoff", HANDOFF), ("whole system", SYSTEM)):
        yield f"wheels missing for the {what}", ", ".join(missing(wheels)) or "none"
    yield "oldest that is supported", ", ".join(f"{name} {oldest}" for name, oldest in OLDEST_VERSIONS.items())


def driver() -> str:
    asked = "driver_version,name,memory.used,memory.total,clocks.sm,clocks.mem,power.limit"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"


def hardware() -> Iterator[tuple[str, str]]:
    """Yields the GPU's properties by PyTorch and Triton. Raises their errors."""
    import torch
    import triton

    yield "CUDA of PyTorch", str(torch.version.cuda)
    found = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    yield "GPU", f"{found.name}, sm_{found.major}{found.minor}, {found.multi_processor_count} processors"
    yield "memory", f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f}"
    yield "bf16", str(torch.cuda.is_bf16_supported())
    yield "Triton compiles for", str(triton.runtime.driver.active.get_current_target())


def main() -> int:
    print("| what | found |\n| --- | --- |")
    for name, found in (*software(), ("driver", driver())):
        print(f"| {name} | {found} |", flush=True)
    try:
        for name, found in hardware():
            print(f"| {name} | {found} |", flush=True)
    except Exception as error:  # whatever a library below makes of a GPU that is not there
        print(f"no GPU to run on: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
