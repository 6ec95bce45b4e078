"""Asks the NVIDIA driver, and refuses a driver that is too old for the installed PyTorch before anything loads."""

import re
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from contracts.errors import ConfigError

NVIDIA_SMI_TIMEOUT_S = 10.0  # nvidia-smi loads the driver first where persistence mode is off
LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""CUDA's major version → the first driver that runs its builds (NVIDIA's "CUDA Compatibility")."""
OLDER_BUILDS = {13: "https://download.pytorch.org/whl/cu126"}
"""CUDA's major version → package index of PyTorch's build for an older major version."""
BUILT_FOR_REGEX = re.compile(r"^cuda\b[^=\n]*= *'(\d+)\.(\d+)'", re.MULTILINE)
DRIVER_REGEX = re.compile(r"(?:Driver|KMD) Version *: *((\d+)\.[\d.]+)")
SUPPORTED_REGEX = re.compile(r"CUDA (?:UMD )?Version *: *(\d+)\.(\d+)")


def nvidia_smi(*options: str) -> str:
    """Returns what the driver's program prints; '' without a driver, or a program that answers in time."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        command = ["nvidia-smi", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S).stdout
    except subprocess.TimeoutExpired:
        return ""


def refuse_old_driver(device: str) -> None:
    """Raises `ConfigError` if work on `device` needs a newer driver for the CUDA version of the installed PyTorch.

    A driver runs builds for its own major version of CUDA and older. Where either version is unknown nothing is
    refused.
    """
    built = None if device == "cpu" else BUILT_FOR_REGEX.search(_version_module())
    if built is None:
        return
    header = nvidia_smi()
    driver, supported = DRIVER_REGEX.search(header), SUPPORTED_REGEX.search(header)
    if driver is None:
        return
    major = int(built[1])
    if int(supported[1]) >= major if supported else int(driver[2]) >= LEAST_DRIVERS.get(major, 0):
        return
    runs = f", which runs CUDA {supported[1]}.{supported[2]}," if supported else ""
    newer = f"driver {LEAST_DRIVERS[major]} or newer" if major in LEAST_DRIVERS else "a newer driver"
    older = f", or PyTorch for an older CUDA (BATON_TORCH_INDEX={OLDER_BUILDS[major]})" if major in OLDER_BUILDS else ""
    raise ConfigError(
        "--device",
        device,
        f"the NVIDIA driver {driver[1]}{runs} is too old for the installed PyTorch {version('torch')}, a build for"
        f" CUDA {built[1]}.{built[2]}: install {newer}{older}, or use --device cpu",
    )


def _version_module() -> str:
    """Returns the source of `torch.version` or '', without the seconds that an import of torch takes."""
    found = find_spec("torch")
    path = Path(found.origin).with_name("version.py") if found and found.origin else None
    return path.read_text() if path and path.is_file() else ""
