"""The part of the page behind its overview: load over time, misses, tenants, lives of workers, and one request."""

import streamlit as st

from contracts.errors import StoreUnavailable
from contracts.slo import NO_OBJECTIVE, Objective
from dashboard import windows
from dashboard.drawing import charts, details_markup, markup
from dashboard.reading import history
from dashboard.reading.badput import badput, tenants, what_if
from dashboard.reading.source import Snapshot, Source
from dashboard.units import as_share

REFRESH_PERIOD_S = 2.0
LOAD_INTERVALS = 60
LOAD, MISSES, TENANTS, WORKERS, REQUEST = "Load", "Misses", "Tenants", "Workers", "One request"
MAX_LIMIT_MS = 3_600_000.0
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
WHAT_IF_HELP = "Judges the requests of the window again, as if each had had these limits. Nothing is set."


def show(source: Source) -> None:
    chosen = st.segmented_control("Details", [LOAD, MISSES, TENANTS, WORKERS, REQUEST], default=LOAD, key="details")
    if chosen == REQUEST:
        _request(source)
    elif chosen is not None:
        if chosen == MISSES:
            _limits(source)
        _part(source, chosen)


@st.fragment(run_every=REFRESH_PERIOD_S)
def _part(source: Source, chosen: str) -> None:
    try:
        snapshot = source.read()
    except StoreUnavailable:
        return  # the first part of the page says so
    window = windows.chosen()
    if chosen == LOAD:
        _load(snapshot, window)
    elif chosen == MISSES:
        _misses(snapshot, window)
    elif chosen == TENANTS:
        found = tenants(snapshot, window)
        if found:
            st.html(details_markup.tenants(found))
        else:
            st.caption("Tenants are the owners of API keys (`--api-keys`). None has asked in this window.")
    else:
        st.html(details_markup.lives(snapshot.workers, snapshot.now))


def _load(snapshot: Snapshot, window: float) -> None:
    data = charts.load_data(history.load(snapshot, window, LOAD_INTERVALS), window / LOAD_INTERVALS)
    for column, shown in zip(st.columns(2, gap="medium"), (charts.KV_LINE, charts.WAITING_LINE), strict=True):
        with column:
            st.html(markup.title(shown.name, shown.note) + markup.roles())
            st.vega_lite_chart(data, charts.load_chart(window, shown), key=f"load-{shown.field}")


def _misses(snapshot: Snapshot, window: float) -> None:
    found = badput(snapshot, window)
    seen = history.glance(snapshot, window)
    st.html(details_markup.misses(found, sum(seen.counts.values())) if found else markup.title("Nothing was missed"))
    limits = Objective(st.session_state.get("what-if-ttft"), st.session_state.get("what-if-tpot"))
    if limits:
        judged = what_if(snapshot, window, limits)
        share = as_share(judged.good / judged.judged) if judged.judged else markup.NO_VALUE
        kept = "" if history.reaches(snapshot, window) else ", the newest that are kept"
        st.caption(f"What if: {share} of {judged.judged} requests would have been good{kept}.")


def _limits(source: Source) -> None:
    """Asks for other limits: a question, which changes no objective."""
    try:
        gateways = source.read().gateways
    except StoreUnavailable:
        return
    usual = gateways[0].objective if gateways else NO_OBJECTIVE
    left, right, _ = st.columns([1, 1, 3])
    for column, name, value in ((left, "ttft", usual.ttft_ms), (right, "tpot", usual.tpot_ms)):
        label = f"What if the limit of {name.upper()} were (ms)"
        column.number_input(label, 1.0, MAX_LIMIT_MS, value, step=10.0, key=f"what-if-{name}", help=WHAT_IF_HELP)


def _request(source: Source) -> None:
    name = request_id(
        st.text_input("Request id", placeholder="from x-request-id, the log or a trace", key="request-id")
    )
    if not name:
        return
    try:
        record, now = source.find(name), source.read().now
    except StoreUnavailable:
        return
    if record is None:
        st.caption(f"None of the newest requests that have ended has the id {name[:64]}.")
    else:
        st.html(details_markup.request(record, now))


def request_id(text: str) -> str:
    """Returns the request's own id, without the prefix that an API gives to its answers' ids."""
    text = text.strip()
    return next((text.removeprefix(prefix) for prefix in ANSWER_PREFIXES if text.startswith(prefix)), text)
