"""Writes rows as Markdown and as JSON."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from benchmarks.kernels.measure import Row
from benchmarks.limits.device_time import Limits

HEAD = (
    "| kernel | shape | µs | rate | % of limit | best of PyTorch | x faster | target |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def versions(device: torch.device) -> str:
    """Writes what was measured where."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}"


def limits_line(limits: Limits) -> str:
    """Writes what the device can do, by the same clock."""
    return f"copy {limits.copy / 1e9:.0f} GB/s, matrix product {limits.multiply / 1e12:.0f} TFLOP/s"


def line(row: Row) -> str:
    """Writes one line of the table."""
    if row.error:
        cells = ["", "", "", "", "", f"**failed**: {row.error}"]
    elif row.seconds is None or row.rate is None or row.share is None:
        cells = ["interpreter", "", "", "", "", row.target]
    else:
        unit, name = (1e9, "GB/s") if row.limit == "copy" else (1e12, "TFLOP/s")
        best = row.best_peer
        theirs = [f"{best[0]} {1e6 * best[1]:.1f}", f"{best[1] / row.seconds:.2f}"] if best else ["", ""]
        missed = " **missed**" if row.met is False else ""
        cells = [f"{1e6 * row.seconds:.1f}", f"{row.rate / unit:.0f} {name}", f"{100 * row.share:.0f}", *theirs]
        cells.append(row.target + missed)
    return f"| {row.kernel} | {row.shape} | {' | '.join(cells)} |"


def write_json(path: Path, device: torch.device, dtype: str, limits: Limits | None, rows: Sequence[Row]) -> None:
    """Writes all that was measured, in seconds, bytes and operations."""
    found = {
        "versions": versions(device),
        "dtype": dtype,
        "limits": asdict(limits) if limits else None,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
