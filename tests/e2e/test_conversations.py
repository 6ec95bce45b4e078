"""Conversations over two pairs of workers find their KV about as often as on a single worker."""

from pathlib import Path

from benchmarks.front.conversations import ConversationsConfig, Told, talk
from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System

WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "64MiB")
TURNS, CONVERSATIONS = 8, 3


def told(directory: Path, url_of: System) -> Told:
    config = ConversationsConfig(
        url=url_of.gateway_url, turns=TURNS, conversations=CONVERSATIONS, output_tokens=12, vocabulary=400
    )
    return talk(config)


def test_turns_go_where_their_kv_lies(tmp_path: Path) -> None:
    """Eight turns; each prompt is all that was said before, the answers too, and a new message."""
    (tmp_path / "single").mkdir()
    (tmp_path / "split").mkdir()
    with System(tmp_path / "single", DEMO, prefill=0, decode=1, worker=WORKER_OPTIONS, handoff="auto") as system:
        single = told(tmp_path, system)
    with System(tmp_path / "split", DEMO, prefill=2, decode=2, worker=WORKER_OPTIONS, handoff="auto") as system:
        split = told(tmp_path, system)
    print(single, split)
    assert single.turns == split.turns == TURNS * CONVERSATIONS
    assert single.cached > 0.7 * single.prompt, "a single worker finds all but new messages"
    assert split.cached >= 0.9 * single.cached
