"""Lays out the page. Streamlit runs this file for each visitor; changing parts are fragments with their own timer."""

import gc
import sys
from functools import partial
from pathlib import Path

import streamlit as st

from contracts.errors import StoreUnavailable
from contracts.slo import NO_OBJECTIVE
from dashboard import details, try_it, windows
from dashboard.asking import GatewayAddress
from dashboard.drawing import charts, markup, requests_markup, workers_markup
from dashboard.drawing.palette import STAGE_COLOURS
from dashboard.plan_page import plan_page
from dashboard.reading import history
from dashboard.reading.advice import advise
from dashboard.reading.advice import lately as seen_lately
from dashboard.reading.figures import judge, progress, rates, refused, sharing
from dashboard.reading.load_runs import load_runs
from dashboard.reading.source import Snapshot, Source
from dashboard.reading.trouble import trouble, unloaded
from infra.cli import parse
from infra.config.dashboard import DashboardConfig

REFRESH_PERIOD_S = 2.0
HEADER_PERIOD_S = 10.0
TIMELINE_INTERVALS = 60
MAX_TABLE_REQUESTS = 12
STYLE_FILE = Path(__file__).with_name("style.css")
ICON_FILE = STYLE_FILE.with_name("icon.svg")
NO_WORKERS = (
    "No worker has registered yet. `./baton up` starts a whole system; "
    "`./baton run prefill` and `./baton run decode` start one worker each."
)


@st.cache_resource(show_spinner=False)
def open_source(url: str) -> Source:
    gc.freeze()  # Streamlit collects garbage after every refresh, and skips frozen objects
    return Source(url)


def pages(config: DashboardConfig) -> None:
    """Lays out the page that the visitor has chosen."""
    now = st.Page(partial(page, config), title="Now", url_path="now", default=True)
    plan = st.Page(partial(plan_of, config), title="Plan", url_path="plan")
    chosen = st.navigation([now, plan], position="hidden")  # Streamlit's own links stand in the header, which is hidden
    with st.container(key="pages", horizontal=True, gap="small"):
        for each in (now, plan):
            st.page_link(each)
    chosen.run()


def plan_of(config: DashboardConfig) -> None:
    st.set_page_config(page_title="Baton: plan", page_icon=str(ICON_FILE), layout="wide")
    st.html(STYLE_FILE)
    plan_page(open_source(config.redis))


def page(config: DashboardConfig) -> None:
    st.set_page_config(page_title="Baton", page_icon=str(ICON_FILE), layout="wide")
    st.html(STYLE_FILE)
    source = open_source(config.redis)
    gateway = GatewayAddress(config.gateway, config.api_key_file, config.gateway_cert)
    head, window = st.columns([5, 2], vertical_alignment="bottom")
    with head:
        _header(source)
    with window:
        windows.choose()
    _numbers(source, gateway)
    left, right = st.columns([5, 3], gap="large")
    with left:
        _tables(source)
    with right:
        try_it.show(source, gateway)
    details.show(source)


@st.fragment(run_every=HEADER_PERIOD_S)
def _header(source: Source) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable:
        st.html(markup.name())
        return
    there = [view.role for view in snapshot.workers if view.state != "silent"]
    models = sorted({gateway.model for gateway in snapshot.gateways})
    st.html(markup.header(models, there.count("prefill"), there.count("decode")))


@st.fragment(run_every=REFRESH_PERIOD_S)
def _numbers(source: Source, gateway: GatewayAddress) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable as away:
        st.error(str(away))
        return
    if sentence := unloaded(snapshot):
        st.info(sentence)
    elif not snapshot.workers:
        st.info(NO_WORKERS)
    elif (said := trouble(snapshot)) is not None:
        st.error(f"**{said.what}** {said.help}")
    window = windows.chosen()
    now, in_progress = snapshot.now, progress(snapshot.gateways)
    seen = history.glance(snapshot, window)
    st.html(markup.tiles(seen, in_progress, rates(snapshot.samples.values(), now)))
    try_it.volley_progress()
    if snapshot.finished or any(in_progress):
        _time_lines(snapshot, window)
    elif snapshot.workers:
        try_it.offer(gateway)


def _time_lines(snapshot: Snapshot, window: float) -> None:
    buckets = history.timeline(snapshot, window, TIMELINE_INTERVALS)
    objective = snapshot.gateways[0].objective if snapshot.gateways else NO_OBJECTIVE
    width = window / TIMELINE_INTERVALS
    runs = load_runs(snapshot.marks, snapshot.now, window)
    goodput, ttft, tpot = st.columns([2, 1, 1], gap="medium")
    with goodput:
        st.html(markup.title("Goodput", f"requests that ended, per {width:g} s", markup.GOODPUT_HINT))
        data = charts.with_runs(charts.goodput_data(buckets, width), runs)
        st.vega_lite_chart(data, charts.goodput_chart(window), key="goodput-line")
        st.html(markup.legend(refused(snapshot.gateways), runs))
    for column, name, limit, colour in (
        (ttft, "ttft", objective.ttft_ms, STAGE_COLOURS["prefill"]),
        (tpot, "tpot", objective.tpot_ms, STAGE_COLOURS["decode"]),
    ):
        with column:
            st.html(
                markup.title(
                    name.upper(), "p50, p95 pale, dashed: the usual limit", getattr(markup, f"{name.upper()}_HINT")
                )
            )
            data = charts.with_runs(charts.latency_data(buckets, width, name, limit), runs)
            st.vega_lite_chart(data, charts.latency_chart(window, colour), key=f"{name}-line")


@st.fragment(run_every=REFRESH_PERIOD_S)
def _tables(source: Source) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable:
        return
    if snapshot.workers:
        lately = {epoch: sharing(life, snapshot.now) for epoch, life in snapshot.samples.items()}
        st.html(markup.title("Workers", "prefix hits, preemptions and tokens since each worker's start"))
        st.html(workers_markup.workers(snapshot.workers, lately))
        if trouble(snapshot) is None and (said := advise(seen_lately(snapshot))):
            st.caption(said)
    if snapshot.finished:
        last = [(record, judge(record)) for record in reversed(snapshot.finished[-MAX_TABLE_REQUESTS:])]
        st.html(markup.title("Last requests"))
        st.html(requests_markup.requests(last, snapshot.now))


if __name__ == "__main__":
    pages(parse(DashboardConfig, sys.argv[1:], "dashboard"))
