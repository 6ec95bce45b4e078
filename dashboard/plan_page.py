"""The page Plan: memory of a batch, dollars per million tokens at an entered price, throughput over TPOT lately."""

import altair as alt
import streamlit as st

from contracts.errors import StoreUnavailable
from contracts.slo import NO_OBJECTIVE
from dashboard.drawing import markup
from dashboard.drawing.charts import MAX_LIMIT_RATIO
from dashboard.drawing.palette import OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.figures import Outcome
from dashboard.reading.plan_figures import ThroughputPoint, fitting_sequences, good_tokens_per_s, kv_bytes, throughput
from dashboard.reading.source import Snapshot, Source
from dashboard.units import as_bytes, as_count
from pricing.roofline.capacity import dollars_per_million

WINDOW_S = 300.0
RATE_POINTS = 30
CHART_HEIGHT_PX = 420
REFRESH_PERIOD_S = 5.0
MAX_LENGTH_TOKENS = 1 << 20
NO_REQUEST = "No answer of several tokens has ended in the last five minutes."


def plan_page(source: Source) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable as away:
        st.error(str(away))
        return
    left, right = st.columns(2, gap="large")
    with left:
        st.html(markup.title("Calculator", "what this deployment holds, and what its tokens cost"))
        _memory(snapshot)
        _cost(source)
    with right:
        _throughput(source)


def _memory(snapshot: Snapshot) -> None:
    holders = [view.record for view in snapshot.workers if view.role == "decode" and view.record is not None]
    sequences = int(st.number_input("Sequences", 1, 1 << 20, 32, key="plan-sequences"))
    length = int(st.number_input("Tokens of each, prompt and answer", 1, MAX_LENGTH_TOKENS, 2048, key="plan-length"))
    if not holders:
        st.info("No decode worker has registered yet.")
        return
    size = kv_bytes(holders[0], sequences, length)
    fit = sum(fitting_sequences(worker, length) for worker in holders)
    fitting = f"{fit} sequences of {length} tokens fit into all decode workers"
    st.metric("KV of these sequences", as_bytes(size), fitting, "off", delta_arrow="off")


def _cost(source: Source) -> None:
    price = st.number_input("Dollars per hour of the whole deployment", 0.0, 1e6, 0.0, key="plan-price")
    snapshot = source.read()
    rate = good_tokens_per_s(snapshot.finished, snapshot.now, WINDOW_S)
    if price <= 0:
        st.caption("Enter what an hour costs: prices are not known here.")
    elif rate:
        cost = f"${dollars_per_million(price, rate):.3f}"
        lately = f"at {as_count(rate)} of them per second, the mean of the last five minutes"
        st.metric("A million output tokens of good requests", cost, lately, "off", delta_arrow="off")
    else:
        st.caption(NO_REQUEST)


@st.fragment(run_every=REFRESH_PERIOD_S)
def _throughput(source: Source) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable:
        return
    note = f"a point for each {WINDOW_S / RATE_POINTS:g} s of the last five minutes, dashed: the usual limit"
    st.html(markup.title("Output over TPOT", note))
    points = throughput(snapshot.finished, snapshot.now, WINDOW_S, RATE_POINTS)
    objective = snapshot.gateways[0].objective if snapshot.gateways else NO_OBJECTIVE
    if points:
        st.altair_chart(throughput_chart(points, objective.tpot_ms), key="plan-throughput")
    else:
        st.caption(NO_REQUEST)


def throughput_chart(points: list[ThroughputPoint], limit_ms: float | None) -> alt.LayerChart | alt.FacetChart:
    """Points of output tokens per second over TPOT, with the limit dashed if it is near."""
    values = [{"tpot": point.tpot_ms, "tokens": point.tokens_per_s} for point in points]
    shown = (
        alt.Chart(alt.InlineData(values))
        .mark_point(filled=True, size=60, color=STAGE_COLOURS["decode"])
        .encode(
            x=alt.X("tpot:Q", title="TPOT, ms", scale=alt.Scale(zero=True)),
            y=alt.Y("tokens:Q", title="output tokens/s", scale=alt.Scale(zero=True)),
        )
    )
    near = limit_ms is not None and limit_ms <= MAX_LIMIT_RATIO * max(point.tpot_ms for point in points)
    limits = [{"tpot": limit_ms}] if near else []
    line = alt.Chart(alt.InlineData(limits)).mark_rule(strokeDash=[5, 4], color=OUTCOME_COLOURS[Outcome.FAILED])
    return alt.layer(shown, line.encode(x="tpot:Q")).properties(height=CHART_HEIGHT_PX)
