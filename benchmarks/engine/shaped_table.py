"""Prints and writes the tables of `benchmarks.engine --shape`.

*x floor* is a step's time over its floor by bytes and operations. *idle* is the share of a step in which the device
waits for the host, *all gaps* the share without any kernel, by the profiler. *% of the matrix rate* counts operations
of the matrices alone, *with attention* those of visible pairs of queries and keys as well. The tables by kernel are of
the same profile, the longest kernels first, with their share of the device's time.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.engine.idle import KernelTime
from benchmarks.engine.shaped import (
    MAX_IDLE_SHARE,
    MAX_TIMES_FLOOR,
    MIN_MATRIX_SHARE,
    PROFILED_STEPS,
    Decoded,
    Read,
    Shaped,
)
from benchmarks.report import head, row

MAX_KERNEL_LINES, MAX_NAME_CHARS = 10, 48
"""Lines of a table by kernel, and characters of a name: cuBLAS' names have hundreds."""


def decodes(engine: Shaped) -> list[Decoded]:
    columns = "batch", "context", "ms per step", "floor", "x floor", "output tok/s", "idle", "all gaps", "targets"
    print(f"\n{head(*columns)}")
    found = []
    for batch in engine.sizes.batches:
        decoded = engine.decode(batch)
        if decoded is None:
            print(f"| {batch} | its KV does not fit ||||||||")
            continue
        found.append(decoded)
        idle = decoded.idle
        shares = [f"{each:.1%}" for each in idle] if idle else ["not measured", ""]
        kept = _mark(f"<= {MAX_TIMES_FLOOR} x", decoded.met)
        waits = _mark(f"<= {MAX_IDLE_SHARE:.0%} idle", idle is None or idle.waiting <= MAX_IDLE_SHARE)
        times = f"{1e3 * decoded.seconds:.3f}", f"{1e3 * decoded.floor:.3f}", f"{decoded.seconds / decoded.floor:.2f}"
        rate = f"{batch / decoded.seconds:.0f}"
        print(row(batch, decoded.context, *times, rate, *shares, f"{kept}, {waits}"), flush=True)
    return found


def reads(engine: Shaped) -> list[Read]:
    print("\n" + head("prompt tokens", "ms", "tok/s", "% of the matrix rate", "with attention", "target"))
    found = []
    for tokens in engine.sizes.prompts:
        if tokens >= engine.executor.engine.model_config.max_model_len:  # the pool has shortened it
            print(f"| {tokens} | its KV does not fit |||||")
            continue
        read = engine.read(tokens)
        found.append(read)
        target = _mark(f">= {MIN_MATRIX_SHARE:.0%}", read.met) if read.met is not None else ""
        rates = f"{1e3 * read.seconds:.1f}", f"{tokens / read.seconds:.0f}"
        print(row(tokens, *rates, f"{100 * read.share:.0f}", f"{100 * read.with_attention:.0f}", target), flush=True)
    return found


def kernels(decoded: Sequence[Decoded], read: Sequence[Read]) -> None:
    for each in dict.fromkeys([*decoded[:1], *decoded[-1:]]):
        _by_kernel(f"a decode step of {each.batch} at context {each.context}", each.kernels, PROFILED_STEPS)
    for prompt in read:
        _by_kernel(f"a prompt of {prompt.tokens} tokens", prompt.kernels, 1)


def _by_kernel(what: str, times: Sequence[KernelTime], repeats: int) -> None:
    if not times:
        return
    whole = sum(each.seconds for each in times)
    print("\n" + head(what, "calls", "µs", "% of the device's time"))
    shown, rest = list(times[:MAX_KERNEL_LINES]), times[MAX_KERNEL_LINES:]
    if rest:
        calls, seconds = sum(each.calls for each in rest), sum(each.seconds for each in rest)
        shown.append(KernelTime(f"{len(rest)} others", calls, seconds))
    for each in shown:
        name, microseconds = each.name.replace("|", "/")[:MAX_NAME_CHARS], 1e6 * each.seconds / repeats
        print(row(name, f"{each.calls / repeats:g}", f"{microseconds:.1f}", f"{100 * each.seconds / whole:.1f}"))


def _mark(target: str, met: bool) -> str:
    return target if met else f"{target} **missed**"


def write_json(path: Path, engine: Shaped, decoded: Sequence[Decoded], read: Sequence[Read]) -> None:
    """Writes all that was measured, in seconds, bytes and operations."""
    found: dict[str, Any] = {
        "versions": engine.header(),
        "shape": engine.shape,
        "limits": asdict(engine.limits),
        "decode": [
            asdict(each) | {"idle": each.idle and each.idle._asdict(), "met": each.met} | _named(each.kernels)
            for each in decoded
        ],
        "prompts": [asdict(each) | {"met": each.met} | _named(each.kernels) for each in read],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")


def _named(times: Sequence[KernelTime]) -> dict[str, Any]:
    return {"kernels": [each._asdict() for each in times]}
