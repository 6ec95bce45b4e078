"""Jobs of every kind that a scheduler has to serve together, drawn by Hypothesis."""

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st


@dataclass(frozen=True)
class DrawnJob:
    """A sequence to be: its tokens, the last `before` of them emitted by earlier attempts."""

    common: int  # leading tokens that it shares with others
    tokens: list[int]  # its own
    before: int
    max_tokens: int
    stop: bool
    kind: Literal["plain", "hand_off", "landing"]
    sample: int
    branches: int
    deadline: int
    salt: str
    priority: int
    tenant: str
    due: int
    logprobs: int | None
    prompt_logprobs: int | None
    grammar: bool


DRAWN_JOBS = st.builds(
    DrawnJob,
    common=st.sampled_from([0, 0, 3, 4, 7, 8, 12]),
    tokens=st.lists(st.integers(0, 10), min_size=1, max_size=6),
    before=st.integers(0, 3),
    max_tokens=st.integers(1, 16),
    stop=st.booleans(),
    kind=st.sampled_from(["plain", "plain", "plain", "hand_off", "landing"]),
    sample=st.integers(0, 1),
    branches=st.sampled_from([0, 0, 0, 1, 2]),
    deadline=st.integers(1, 60),
    salt=st.sampled_from(["", "", "other"]),
    priority=st.integers(0, 1),
    tenant=st.sampled_from(["", "", "a", "bb"]),
    due=st.integers(-5, 30),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, 0, 1]),
    grammar=st.sampled_from([False, False, True]),
)
