"""Stands in for the driver's program `nvidia-smi` on a host without GPUs: a real program for the PATH."""

from pathlib import Path

HEADER = "| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda}   |"


def write_nvidia_smi(
    directory: Path, gpus: int, name: str = "NVIDIA H100 80GB HBM3", driver: str = "580.65.06", cuda: str = "13.0"
) -> Path:
    """Writes the program into `directory`; it lists `gpus` GPUs for `-L`, else it prints the driver's version."""
    listed = "\n".join(f"GPU {number}: {name} (UUID: GPU-{number}0f)" for number in range(gpus))
    header = HEADER.format(driver=driver, cuda=cuda)
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nif [ \"$1\" = -L ]; then cat <<'END'\n{listed}\nEND\nelse echo '{header}'; fi\n")
    program.chmod(0o755)
    return program
