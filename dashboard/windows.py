"""The windows that the page's figures can have, in s, and the one that its visitor has chosen."""

import streamlit as st

WINDOW_SECONDS = {"1 min": 60.0, "5 min": 300.0, "30 min": 1800.0, "3 h": 10_800.0, "24 h": 86_400.0}
USUAL_WINDOW = "5 min"
STATE_KEY = "window"


def choose() -> None:
    st.segmented_control("Window", list(WINDOW_SECONDS), default=USUAL_WINDOW, key=STATE_KEY, required=True)


def chosen() -> float:
    return WINDOW_SECONDS[st.session_state[STATE_KEY]]
