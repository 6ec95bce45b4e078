"""Measures one row, first its correctness, then its time, then PyTorch's; writes rows as Markdown and JSON."""

import json
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import triton
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, close
from benchmarks.kernels.rows import Wanted
from benchmarks.limits.device_time import Limits, seconds_of

TABLE_HEAD = (
    "| kernel | shape | µs | rate | % of limit | best of PyTorch | x faster | target |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Row:
    """A line of the table. Seconds are None in the interpreter, whose time means nothing."""

    kernel: str
    shape: str
    limit: Limit
    seconds: float | None = None
    rate: float | None = None
    """Bytes or floating-point operations per second."""
    share: float | None = None
    """Share of the rate at which the device copies or multiplies."""
    peers: dict[str, float | None] = field(default_factory=dict)
    """Seconds; None where the peer does not support the shape."""
    target: str = ""
    met: bool | None = None
    error: str = ""

    @property
    def best_peer(self) -> tuple[str, float] | None:
        found = [(seconds, name) for name, seconds in self.peers.items() if seconds is not None]
        return min(found)[::-1] if found else None


def measure(wanted: Wanted, case: Case, device: torch.device, limits: Limits | None) -> Row:
    """Measures a row; without `limits` nothing is timed. Raises AssertionError for a wrong result."""
    target, shape = wanted.shape.target, str(wanted.shape)
    text = str(target) if target else ""
    with torch.inference_mode():
        case.check(None)
        ours = case.run(None)
        if limits is None:
            for name, peer in case.peers.items():
                _agrees(name, peer(), ours)
            return Row(wanted.kernel, shape, wanted.limit, target=text)
        seconds = seconds_of(lambda: case.run(None), device)
        peers = {name: _peer(case, name, ours, device) for name in case.peers}
    work, limit = (case.bytes, limits.copy) if wanted.limit == "copy" else (case.operations, limits.multiply)
    rate = work / seconds
    row = Row(wanted.kernel, shape, wanted.limit, seconds, rate, rate / limit, peers, text)
    if target is None:
        return row
    best = row.best_peer
    return replace(row, met=rate / limit >= target.share if target.share else best is not None and seconds <= best[1])


def _peer(case: Case, name: str, ours: object, device: torch.device) -> float | None:
    with quiet():
        try:
            _agrees(name, case.peers[name](), ours)
            return seconds_of(case.peers[name], device)
        except Exception as error:  # a library's own, whatever it is
            print(f"{name}: {str(error).strip().partition(chr(10))[0][:200]}")
            return None


def _agrees(name: str, theirs: object, ours: object) -> None:
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        try:
            close(theirs, ours)
        except AssertionError as error:
            raise RuntimeError(f"{name} gives another result: {error}") from None


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def versions(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
    return f"{name}; Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}"


def limits_line(limits: Limits) -> str:
    return f"copy {limits.copy / 1e9:.0f} GB/s, matrix product {limits.multiply / 1e12:.0f} TFLOP/s"


def line(row: Row) -> str:
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
    """Writes all rows, in seconds, bytes and operations."""
    found = {
        "versions": versions(device),
        "dtype": dtype,
        "limits": asdict(limits) if limits else None,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
