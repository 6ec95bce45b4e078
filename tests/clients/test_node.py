"""The official clients for JavaScript, with their defaults, each in Node's own test runner."""

import os
import subprocess

import pytest

from tests.clients.conftest import AT_ONCE, NODE
from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.waiting import LONG_DEADLINE_S


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_the_official_client_works_with_its_defaults(client: str, system: System, node: str) -> None:
    told = {"BATON_URL": system.gateway_url, "BATON_MODEL": DEMO.name, "BATON_AT_ONCE": str(AT_ONCE)}
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", f"{client}.test.mjs"],
        cwd=NODE,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=LONG_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    system.wait_until_idle()
