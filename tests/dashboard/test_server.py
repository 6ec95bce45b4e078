"""The process: how it starts, refuses and ends."""

import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.dashboard.conftest import Start
from tests.waiting import DEADLINE_S

NOWHERE = "redis://127.0.0.1:1"


def refusal(*options: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "dashboard", *options], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 2 and ended.stdout == ""
    return ended.stderr


@pytest.mark.parametrize("redis", [NOWHERE, "redis+cluster://127.0.0.1:1"])
def test_it_answers_when_it_says_so_and_ends_cleanly(start_dashboard: Start, redis: str) -> None:
    """A Redis that is away is waited for."""
    address = start_dashboard("--redis", redis)
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
        assert b"<title>" in answer.read()


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal("--redis", NOWHERE, "--port", str(port))
    assert said == f"error: --port: {port}: another process uses this port; --port takes another\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--redis", "ftp://127.0.0.1"), "error: --redis: 'ftp://127.0.0.1'"),
        (("--port", "70000"), "error: --port: '70000'"),
    ],
)
def test_a_bad_option_is_named(options: tuple[str, ...], named: str) -> None:
    said = refusal(*options)
    assert said.startswith(named) and said.count("\n") == 1
