"""Writes the results beside peers as Markdown."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.limits.floor import Work, floor
from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import EXPERTS_TARGETS, LIMIT_TARGETS, QUANTIZED_TARGETS, TARGETS, Workload
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.rounds import Results
from benchmarks.report import head, row
from contracts.kinds import Quantization
from engine.start.sizing import CPU_STEP_TOKENS

HEADS = {
    "none": "",
    "int8": "head in int8 as well (llama.cpp: Q8_0)",
    "int4": "head in int8 (llama.cpp: Q8_0)",
}
"""Weights of the heads of all systems."""


@dataclass(frozen=True)
class Measured:
    """Results and their setting. The first system is ours."""

    results: Results
    systems: Sequence[PeerProcess]
    workloads: Sequence[Workload]
    rounds: int
    machine: Machine
    work: Work
    dtype: str
    quantization: Quantization
    experts: bool

    @property
    def names(self) -> list[str]:
        return [system.name for system in self.systems]

    def limit(self, workload: Workload) -> float:
        return workload.rate(floor(workload, self.machine, self.work, CPU_STEP_TOKENS).total)

    def header(self) -> list[str]:
        versions = "; ".join(
            f"{system.name} ({', '.join(f'{package} {version}' for package, version in system.versions.items())})"
            for system in self.systems
        )
        form = self.dtype
        if self.quantization != "none":
            form = f"{self.quantization} weights, {HEADS[self.quantization]}, {self.work.bytes >> 20} MiB; {self.dtype}"
        machine = self.machine
        return [
            f"{machine.name}, {machine.threads} threads; Python {platform.python_version()}; {versions}",
            f"memory {machine.read / 1e9:.1f} GB/s, matrix product {machine.multiply / 1e9:.0f} GFLOP/s; {form}; "
            f"tokens/s, median of {self.rounds} interleaved rounds",
        ]


def table(measured: Measured) -> list[str]:
    lines = _plain(measured) if measured.quantization == "none" else _quantized(measured)
    results, names = measured.results, measured.names
    same = ", ".join(f"{name} {sum(results.agreed[name])}" for name in names[1:])
    lines.append(f"first tokens that are equal to ours, of {len(results.agreed[names[0]])}: {same}")
    idle = ", ".join(f"{name} {cores:.2f}" for name, cores in results.idle_cores.items())
    lines.append(
        f"cores that each took, at most, while another one was measured: {idle or 'not known, runs were short'}"
    )
    return lines


def _plain(measured: Measured) -> list[str]:
    results, (ours, *peers) = measured.results, measured.names
    targets = EXPERTS_TARGETS if measured.experts else TARGETS
    columns = "workload", "tokens", *measured.names, "limit", "ours ÷ best peer", "target"
    lines = [*measured.header(), *head(*columns).splitlines()]
    for workload in measured.workloads:
        best = results.best(peers, workload)
        ratio = f"{results.ratio(ours, best, workload):.2f} ({best})"
        target = f"{targets[workload]:.1f}" if workload in targets else "-"
        lines.append(
            row(
                workload,
                workload.counted,
                *_rates(measured, workload),
                f"{measured.limit(workload):.0f}",
                ratio,
                target,
            )
        )
    return lines


def _quantized(measured: Measured) -> list[str]:
    results, (ours, *others) = measured.results, measured.names
    targets = QUANTIZED_TARGETS[measured.quantization]
    least = LIMIT_TARGETS[measured.quantization]
    columns = "workload", "tokens", *measured.names, "limit", "% of limit", *(f"ours ÷ {name}" for name in others)
    lines = [*measured.header(), *head(*columns).splitlines()]
    for workload in measured.workloads:
        limit = measured.limit(workload)
        share = median(workload.rate(seconds) / limit for seconds in results.seconds[ours][workload])
        ratios = (
            f"{results.ratio(ours, name, workload):.2f}{_wanted(targets.get(name, {}).get(workload))}"
            for name in others
        )
        reached = f"{100 * share:.0f}{_wanted(least.get(workload))}"
        lines.append(row(workload, workload.counted, *_rates(measured, workload), f"{limit:.0f}", reached, *ratios))
    return lines


def _wanted(target: float | None) -> str:
    return "" if target is None else f" (≥ {target:g})"


def _rates(measured: Measured, workload: Workload) -> list[str]:
    return [f"{measured.results.rate(name, workload):.1f}" for name in measured.names]
