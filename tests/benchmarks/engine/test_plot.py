"""The picture is well-formed, and every point is inside its frame and where its figures say."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks.engine.plot import GAP, HEIGHT, WIDTH, Axis, Point, draw
from benchmarks.limits.floor import Timing, Work, floor
from benchmarks.limits.machine import Machine
from benchmarks.limits.workloads import DECODE_SWEEP, PROMPT_SWEEP

MACHINE = Machine("a <small> machine", 2, 2e10, 1e12)
WORK = Work(every=80_000_000, sampled=30_000_000, width=2, token_bytes=20_000)
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_every_point_is_in_its_frame() -> None:
    leasts = [(each, floor(each, MACHINE, WORK, 512)) for each in (*DECODE_SWEEP, *PROMPT_SWEEP)]
    points = [Point(each, Timing(2 * least.prompts, 2 * least.total), least) for each, least in leasts]
    root = ElementTree.fromstring(draw(points, MACHINE, WORK, 512))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{NAMESPACE}circle")]
    assert len(dots) == 2 * len(DECODE_SWEEP) + len(PROMPT_SWEEP)
    lefts = [GAP] * len(DECODE_SWEEP) + [2 * GAP + WIDTH] * len(points)
    for left, (x, y) in zip(lefts, dots, strict=True):
        assert left <= x <= left + WIDTH and 40 <= y <= 40 + HEIGHT
    batches = [x for x, _ in dots[: len(DECODE_SWEEP)]]
    steps = [later - earlier for earlier, later in pairwise(batches)]
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.11)  # powers of two, drawn to a tenth of a pixel
    assert any("a <small> machine, 2 threads: 20.0 GB/s, 1000 GFLOP/s" in (text.text or "") for text in root.iter())


def test_axes_are_logarithmic() -> None:
    axis = Axis(1.0, 100.0, 10.0, 200.0)
    assert [axis.at(value) for value in (1, 10, 100)] == pytest.approx([10, 110, 210])
    assert axis.ticks(10) == [1, 10, 100] and axis.ticks(2) == [2.0**power for power in range(7)]
    assert math.isclose(Axis(1.0, 100.0, 300.0, -200.0).at(10), 200)  # upwards on the page
