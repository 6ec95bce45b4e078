"""Draws the Try it box: one question, its streamed answer, then the path of the request."""

import time

import streamlit as st

from contracts.errors import StoreUnavailable
from dashboard.asking import ChatQuestion, GatewayAddress, Volley
from dashboard.drawing import markup, requests_markup
from dashboard.reading.source import Source
from workloads.example_chats import EXAMPLE_CHATS, FIRST_QUESTION, ExampleChat

MAX_ANSWER_TOKENS = 200
POLL_PERIOD_S = 0.3  # only while an answer arrives
MAX_RECORD_WAIT_S = 6.0  # from the end of an answer


def show(source: Source, gateway: GatewayAddress) -> None:
    """Draws the box, which refreshes itself while an answer arrives."""
    question: ChatQuestion | None = st.session_state.get("question")
    st.fragment(_box, run_every=POLL_PERIOD_S if question and not _settled(source, question) else None)(source, gateway)


def offer(gateway: GatewayAddress) -> None:
    """Draws a button that sends twenty requests, for a page without any request."""
    running: Volley | None = st.session_state.get("volley")
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown("Nothing has been asked yet. Ask something below, or have a look with 20 varied requests.")
        busy = running is not None and running.running
        st.button("Send 20 requests", on_click=_send, args=(gateway,), disabled=busy, type="primary")


def volley_progress() -> None:
    """Shows the progress of the twenty requests, and an error."""
    volley: Volley | None = st.session_state.get("volley")
    if volley is None:
        return
    ended = volley.answered + volley.failed
    if volley.running:
        st.progress(ended / volley.total, f"Sending {volley.total} requests, a few at once: {ended} answered")
    elif volley.failed:
        st.warning(f"{volley.failed} of {volley.total} requests failed: {volley.error}")


def _send(gateway: GatewayAddress) -> None:
    st.session_state["volley"] = Volley(gateway, EXAMPLE_CHATS)


def _box(source: Source, gateway: GatewayAddress) -> None:
    st.html(markup.title("Try it", "one request and the way it goes"))
    with st.form("try-it", border=False):
        text = st.text_area(
            "Question", FIRST_QUESTION, key="try-text", height=68, max_chars=2000, label_visibility="collapsed"
        )
        asked = st.form_submit_button("Ask", type="primary")
    if asked and text.strip():
        st.session_state["question"] = ChatQuestion(gateway, ExampleChat(text.strip(), MAX_ANSWER_TOKENS))
        st.rerun()
    question: ChatQuestion | None = st.session_state.get("question")
    if question is not None:
        _progress_of(question, source)


def _progress_of(question: ChatQuestion, source: Source) -> None:
    running = question.ended_at is None
    if running or question.text:
        st.html(markup.answer(question.text, running=running))
    if running:
        return
    if question.error:
        st.error(f"No answer: {question.error}.")
    try:
        record = source.find(question.request) if question.request else None
    except StoreUnavailable:
        record = None
    if record is not None:
        st.html(requests_markup.way(record))
    elif not _settled(source, question):
        st.caption("Looking up its way …")
        return
    elif not question.error:
        st.caption("Its record did not come to Redis, so its way is not known.")
    if st.session_state.get("settled") != id(question):
        st.session_state["settled"] = id(question)
        st.rerun()  # the whole page once, so that the box stops polling


def _settled(source: Source, question: ChatQuestion) -> bool:
    """Returns whether neither more of the answer nor the record will arrive."""
    if question.ended_at is None:
        return False
    if not question.request or time.monotonic() - question.ended_at > MAX_RECORD_WAIT_S:
        return True
    try:
        return source.find(question.request) is not None
    except StoreUnavailable:
        return False
