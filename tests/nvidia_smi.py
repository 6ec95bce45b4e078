"""Stands in for the driver's program `nvidia-smi` on a host without GPUs: a real program for the PATH."""

from collections.abc import Sequence
from pathlib import Path

HEADER = "| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda}   |"


def topology(gpus: int, way: str = "SYS", joined: Sequence[tuple[int, int]] = (), by: str = "NV4") -> str:
    """Returns the matrix of `nvidia-smi topo -m` as the driver writes it; `joined` pairs have another way."""

    def cell(row: int, column: int) -> str:
        return " X " if row == column else by if (min(row, column), max(row, column)) in joined else way

    head = "\t" + "\t".join(f"GPU{n}" for n in range(gpus)) + "\tNIC0\tCPU Affinity\tNUMA Affinity"
    rows = (f"GPU{n}\t" + "\t".join(cell(n, m) for m in range(gpus)) + "\tNODE\t0-31\t0" for n in range(gpus))
    return "\n".join([f"\x1b[4m{head}\x1b[0m", *rows, "NIC0\t" + "NODE\t" * gpus + " X "])


def write_nvidia_smi(
    directory: Path,
    gpus: int,
    name: str = "NVIDIA H100 80GB HBM3",
    driver: str = "580.65.06",
    cuda: str = "13.0",
    matrix: str = "",
) -> Path:
    """Writes the program into `directory`; it lists `gpus` GPUs for `-L`, else it prints the driver's version.

    For `topo` it prints a `matrix`, or what it prints for GPUs that are all joined alike.
    """
    listed = "\n".join(f"GPU {number}: {name} (UUID: GPU-{number}0f)" for number in range(gpus))
    header = HEADER.format(driver=driver, cuda=cuda)
    program = directory / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$1\" in\n-L) cat <<'END'\n{listed}\nEND\n;;\n"
        f"topo) cat <<'END'\n{matrix or topology(gpus)}\nEND\n;;\n*) echo '{header}' ;;\nesac\n"
    )
    program.chmod(0o755)
    return program
