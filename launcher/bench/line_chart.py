"""A line chart as SVG, for reports that stand alone: curves with points, a dashed limit, and marks with a label."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import cycle, pairwise

from msgspec import Struct

WIDTH_PX, HEIGHT_PX = 640, 340
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 70, 20, 16, 46
NAME_LINE_PX, NAME_LETTER_PX = 16, 7
"""Height of the line of a curve's name, and about the width of a letter."""
PLACE_STEP_PX = 6
MAX_TICKS = 6
CURVE_COLOURS = ("#3d9bc4", "#2f9e77", "#dd9a2b", "#b577c2", "#6a7fd4", "#d4564c")
ROUND_STEPS = (1.0, 2.0, 5.0, 10.0)


class Curve(Struct, frozen=True):
    """Points in the order in which they are joined; `marks` are drawn larger, each with its text."""

    name: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, float, str]] = ()


class LineChart(Struct, frozen=True, kw_only=True):
    """Axes begin at 0. A limit is a value of its axis, with its name."""

    x_title: str
    y_title: str
    curves: Sequence[Curve]
    x_limit: tuple[float, str] | None = None
    y_limit: tuple[float, str] | None = None

    def svg(self) -> str:
        parts = [*self._axes(), *self._limits()]
        for curve, colour in zip(self.curves, cycle(CURVE_COLOURS), strict=False):
            parts += self._curve(curve, colour)
        parts += self._names()
        return (
            f'<svg viewBox="0 0 {WIDTH_PX} {HEIGHT_PX}" role="img" aria-label="{escape(self.y_title)} over '
            f'{escape(self.x_title)}">{"".join(parts)}</svg>'
        )

    @property
    def _most(self) -> tuple[float, float]:
        """The largest values of both axes."""
        points = [point for curve in self.curves for point in curve.points]
        x = [each for each, _ in points] + ([self.x_limit[0]] if self.x_limit else [])
        y = [each for _, each in points] + ([self.y_limit[0]] if self.y_limit else [])
        return 1.05 * max(x, default=0.0) or 1.0, 1.08 * max(y, default=0.0) or 1.0

    def _place(self, x: float, y: float) -> tuple[float, float]:
        most_x, most_y = self._most
        across, up = WIDTH_PX - LEFT_PX - RIGHT_PX, HEIGHT_PX - TOP_PX - BOTTOM_PX
        return LEFT_PX + across * x / most_x, HEIGHT_PX - BOTTOM_PX - up * y / most_y

    def _axes(self) -> Iterator[str]:
        most_x, most_y = self._most
        low, bottom = self._place(0, 0)
        high, top = self._place(most_x, most_y)
        for value in ticks(most_x):
            x, _ = self._place(value, 0)
            yield f'<path class="grid" d="M{x:.1f} {bottom:.1f}V{top:.1f}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{value:g}</text>'
        for value in ticks(most_y):
            _, y = self._place(0, value)
            yield f'<path class="grid" d="M{low:.1f} {y:.1f}H{high:.1f}"/>'
            yield f'<text x="{low - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        middle = (low + high) / 2
        yield f'<text x="{middle:.1f}" y="{HEIGHT_PX - 8}" text-anchor="middle">{escape(self.x_title)}</text>'
        middle = (top + bottom) / 2
        turned = f'transform="rotate(-90 14 {middle:.1f})"'
        yield f'<text x="14" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(self.y_title)}</text>'

    def _limits(self) -> Iterator[str]:
        most_x, most_y = self._most
        if self.x_limit is not None:
            (x, bottom), (_, top) = self._place(self.x_limit[0], 0), self._place(0, most_y)
            yield f'<path class="limit" d="M{x:.1f} {bottom:.1f}V{top:.1f}"/>'
            place = f'x="{x - 5:.1f}" y="{top + 12:.1f}" text-anchor="end"'
            yield f'<text class="limit" {place}>{escape(self.x_limit[1])}</text>'
        if self.y_limit is not None:
            (left, y), (right, _) = self._place(0, self.y_limit[0]), self._place(most_x, 0)
            yield f'<path class="limit" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
            yield f'<text class="limit" x="{left + 5:.1f}" y="{y - 5:.1f}">{escape(self.y_limit[1])}</text>'

    def _curve(self, curve: Curve, colour: str) -> Iterator[str]:
        places = [self._place(*point) for point in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>'
        for (x, y), (at_x, at_y) in zip(places, curve.points, strict=True):
            title = f"<title>{escape(curve.name)}: {at_x:.4g}, {at_y:.4g}</title>"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{title}</circle>'
        for mark_x, mark_y, text in curve.marks:
            x, y = self._place(mark_x, mark_y)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="{colour}" stroke-width="2"/>'
            place = f'x="{x - 10:.1f}" y="{y - 8:.1f}" text-anchor="end"'
            yield f'<text {place} style="fill:{colour}">{escape(text)}</text>'

    def _names(self) -> Iterator[str]:
        """Yields the names of the curves, in the corner that the curves touch least."""
        names = [curve.name for curve in self.curves]
        width, height = NAME_LETTER_PX * max(map(len, names), default=0), NAME_LINE_PX * len(names)
        right, bottom = WIDTH_PX - RIGHT_PX - width - 10, HEIGHT_PX - BOTTOM_PX - height - 6
        corners = [(x, y) for y in (TOP_PX, bottom) for x in (LEFT_PX + 10, right)]
        touched = list(self._between_points())

        def within(corner: tuple[float, float]) -> int:
            left, top = corner
            return sum(left - 8 <= x <= left + width and top - 4 <= y <= top + height + 8 for x, y in touched)

        left, top = min(corners, key=within)
        for at, (name, colour) in enumerate(zip(names, cycle(CURVE_COLOURS), strict=False)):
            if name:
                y = top + NAME_LINE_PX * (at + 1)
                yield f'<text x="{left:g}" y="{y:g}" style="fill:{colour}">{escape(name)}</text>'

    def _between_points(self) -> Iterator[tuple[float, float]]:
        """Yields places on the curves, a few pixels from each other."""
        for curve in self.curves:
            places = [self._place(*point) for point in curve.points]
            yield from places
            for (x, y), (next_x, next_y) in pairwise(places):
                steps = 1 + int(math.hypot(next_x - x, next_y - y) / PLACE_STEP_PX)
                yield from ((x + (next_x - x) * at / steps, y + (next_y - y) * at / steps) for at in range(1, steps))


def ticks(most: float) -> list[float]:
    """Returns round values from 0 to `most`, six at most."""
    size = 10.0 ** math.floor(math.log10(most / MAX_TICKS))
    step = next(size * part for part in ROUND_STEPS if most / (size * part) <= MAX_TICKS)
    return [step * number for number in range(int(most / step) + 1)]
