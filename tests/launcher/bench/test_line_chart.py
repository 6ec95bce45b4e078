"""Charts as SVG: points where their values say, limits, labels, and names that cannot leave the page's text."""

import re
from xml.etree import ElementTree

import pytest

from launcher.bench.line_chart import MAX_TICKS, Curve, LineChart, ticks


@pytest.mark.parametrize("most", [0.003, 0.9, 1.0, 7.0, 105.0, 2_000.0, 31_400.0])
def test_ticks_are_few_and_round(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0 and 2 <= len(found) <= MAX_TICKS + 1 and found[-1] <= most
    assert re.fullmatch(r"[125]e[+-]\d+", f"{found[1]:.0e}")


def test_points_stand_where_their_values_say() -> None:
    chart = LineChart(
        x_title="x", y_title="y", curves=[Curve("a", [(0, 0), (10, 50), (20, 100)])], x_limit=(10, "limit")
    )
    svg = ElementTree.fromstring(chart.svg())
    circles = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in svg.iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y2
    limit = next(each for each in svg.iter("path") if each.attrib["class"] == "limit")
    assert limit.attrib["d"].startswith(f"M{x1:.1f} ")


def test_names_are_escaped_and_an_empty_chart_is_one() -> None:
    assert "<b>" not in LineChart(x_title="<b>", y_title="y", curves=[Curve("<b>", [(1, 1)], [(1, 1, "<b>")])]).svg()
    ElementTree.fromstring(LineChart(x_title="x", y_title="y", curves=[]).svg())
