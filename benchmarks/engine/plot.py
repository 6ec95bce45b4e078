"""Draws two pictures in one SVG: throughput over batch beside its limit, and the roofline with what was measured.

Written by hand, because a drawing library would be a dependency for forty lines of it.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.limits.floor import Timing, Work, intensity, operations
from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import Workload

WIDTH, HEIGHT, GAP = 460, 320, 70
OURS, LIMIT, PROMPTS = "#1f6fb4", "#888888", "#d1730f"
STYLE = "text { font: 12px sans-serif; fill: #333333 } .title { font-size: 14px }"


class Point(NamedTuple):
    """Holds a workload, the time that it took, and the least that it could take."""

    workload: Workload
    timing: Timing
    least: Timing


class Axis(NamedTuple):
    """Describes a logarithmic axis from `low` to `high`, over so many pixels from `begin`; SVG counts down the page."""

    low: float
    high: float
    begin: float
    length: float

    def at(self, value: float) -> float:
        """Returns where a value stands, in pixels."""
        return self.begin + self.length * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, base: int) -> list[float]:
        """Returns the powers of `base` on the axis."""
        exponents = range(math.ceil(math.log(self.low, base) - 1e-9), math.floor(math.log(self.high, base) + 1e-9) + 1)
        return [float(base) ** exponent for exponent in exponents]


def draw(points: Sequence[Point], machine: Machine, work: Work, batch_tokens: int) -> str:
    """Writes the SVG. Of `points`, those with one output token are prompts; of the others, the batch is drawn."""
    decodes = [point for point in points if point.workload.output > 1]
    rates = f"{machine.read / 1e9:.1f} GB/s, {machine.multiply / 1e9:.0f} GFLOP/s"
    left, right = _throughput(decodes, GAP), _roofline(points, machine, work, batch_tokens, 2 * GAP + WIDTH)
    return page([*left, *right], f"{machine.name}, {machine.threads} threads: {rates}")


def page(parts: Sequence[str], below: str) -> str:
    """Lays out two frames side by side, the first at `GAP`, the second at 2 `GAP` + `WIDTH`, text below them."""
    width, height = 2 * (WIDTH + GAP) + 20, HEIGHT + 110
    whole = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>',
        *parts,
        f'<text x="{GAP}" y="{height - 10}">{escape(below)}</text>',
        "</svg>",
    ]
    return "\n".join(whole) + "\n"


def _throughput(points: Sequence[Point], left: float) -> list[str]:
    measured = [(p.workload.requests, p.workload.rate(p.timing.total)) for p in points]
    limit = [(p.workload.requests, p.workload.rate(p.least.total)) for p in points]
    x = Axis(min(n for n, _ in measured), 1.1 * max(n for n, _ in measured), left, WIDTH)
    y = vertical([rate for _, rate in (*measured, *limit)])
    return [
        *frame(x, y, "output tokens/s over batch (16→64)", "requests at once", 2),
        line(x, y, limit, LIMIT),
        line(x, y, measured, OURS),
        *dots(x, y, measured, OURS),
        label(x, y, limit[-1], "limit", LIMIT),
        label(x, y, measured[-1], "measured", OURS),
    ]


def _roofline(points: Sequence[Point], machine: Machine, work: Work, batch_tokens: int, left: float) -> list[str]:
    places: dict[str, list[tuple[float, float]]] = {PROMPTS: [], OURS: []}
    for point in points:
        workload = point.workload
        place = intensity(workload, work, batch_tokens), operations(workload, work) / point.timing.total
        places[PROMPTS if workload.output == 1 else OURS].append(place)
    every = [place for found in places.values() for place in found]
    ridge = machine.multiply / machine.read
    x = Axis(min(0.5, *(at for at, _ in every)), 2 * max(ridge, *(at for at, _ in every)), left, WIDTH)
    roof = [(x.low, x.low * machine.read), (ridge, machine.multiply), (x.high, machine.multiply)]
    y = vertical([rate / 1e9 for _, rate in (*every, *roof)])
    return [
        *frame(x, y, "roofline: GFLOP/s", "operations per byte read", 10),
        line(x, y, [(at, rate / 1e9) for at, rate in roof], LIMIT),
        *(
            dot
            for colour, found in places.items()
            for dot in dots(x, y, [(at, rate / 1e9) for at, rate in found], colour)
        ),
        f'<text x="{left + 10}" y="60" style="fill: {OURS}">● batches (16→64)</text>',
        f'<text x="{left + 10}" y="78" style="fill: {PROMPTS}">● prompts</text>',
    ]


def vertical(values: Iterable[float]) -> Axis:
    """Makes an axis upwards on the page, with room above and below the values."""
    found = list(values)
    return Axis(min(found) / 1.5, max(found) * 1.5, 40 + HEIGHT, -HEIGHT)


def frame(x: Axis, y: Axis, title: str, below: str, base: int) -> list[str]:
    """Draws axes with ticks at the powers of `base`, a title, and what the horizontal one is of."""
    right, bottom = x.begin + x.length, y.begin
    parts = [
        f'<text class="title" x="{x.begin}" y="25">{escape(title)}</text>',
        f'<path d="M{x.begin} 40V{bottom}H{right}" fill="none" stroke="#333333"/>',
        f'<text x="{x.begin + x.length / 2}" y="{bottom + 38}" text-anchor="middle">{escape(below)}</text>',
    ]
    for tick in x.ticks(base):
        at = x.at(tick)
        parts.append(f'<path d="M{at:.1f} {bottom}v5" stroke="#333333"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 19}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks(10) if len(y.ticks(10)) > 1 else y.ticks(2):
        at = y.at(tick)
        parts.append(f'<path d="M{x.begin} {at:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x.begin - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return parts


def line(x: Axis, y: Axis, places: Iterable[tuple[float, float]], colour: str) -> str:
    """Draws a line through all places."""
    path = " ".join(f"{x.at(at):.1f},{y.at(value):.1f}" for at, value in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def dots(x: Axis, y: Axis, places: Iterable[tuple[float, float]], colour: str) -> list[str]:
    """Draws a dot at each place; it says its value where the pointer is."""
    return [
        f'<circle cx="{x.at(at):.1f}" cy="{y.at(value):.1f}" r="4" fill="{colour}"><title>{value:.4g}</title></circle>'
        for at, value in places
    ]


def label(x: Axis, y: Axis, place: tuple[float, float], text: str, colour: str) -> str:
    """Writes words above the end of a line."""
    at, value = place
    return f'<text x="{x.at(at):.1f}" y="{y.at(value) - 8:.1f}" text-anchor="end" style="fill: {colour}">{text}</text>'
