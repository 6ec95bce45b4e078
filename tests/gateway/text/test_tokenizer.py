"""Long texts are tokenized beside everything else that the process does, or not at all."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.text.tokenizer import ModelTokenizer, TooManyTokens
from launcher.options import DEMO_MODEL

TEXT = "Once upon a time there was a fox. " * 3000


@pytest.fixture(scope="module")
def demo() -> ModelTokenizer:
    return ModelTokenizer(Path(DEMO_MODEL))


@pytest.fixture
def no_switching() -> Iterator[None]:
    """A thread gives Python's lock to others when it wants to, and is never made to."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_switching")
def test_other_threads_run_while_a_text_is_tokenized(demo: ModelTokenizer) -> None:
    turns, seen = 0, []

    def work() -> None:
        seen.append(turns)
        demo.encode(TEXT, special=False)
        seen.append(turns)

    thread = threading.Thread(target=work)
    thread.start()
    while len(seen) < 2:
        turns += 1
        time.sleep(0)  # gives the lock back and takes it again
    thread.join()
    assert seen[1] > seen[0]


def test_a_text_is_refused_for_its_length_alone(demo: ModelTokenizer) -> None:
    with pytest.raises(TooManyTokens) as refusal:
        demo.encode(TEXT, special=False, max_tokens=100)
    assert not refusal.value.counted and 100 < refusal.value.count < len(demo.encode(TEXT, special=False))


def test_a_text_is_refused_for_its_tokens(demo: ModelTokenizer) -> None:
    ids = demo.encode(TEXT, special=False)
    assert demo.encode(TEXT, special=False, max_tokens=len(ids)) == ids
    with pytest.raises(TooManyTokens) as refusal:
        demo.encode(TEXT, special=False, max_tokens=len(ids) - 1)
    assert refusal.value.counted and refusal.value.count == len(ids)
