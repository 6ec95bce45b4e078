"""What /openapi.json promises is what the whole system does, as far as a short search finds."""

from pathlib import Path

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.fuzz.openapi import asked

CONTEXT = ("--max-model-len", "96")  # short answers: the search is for shapes


def test_schemathesis_finds_nothing_that_is_not_as_described(tmp_path: Path) -> None:
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB")
    with System(tmp_path, DEMO, worker=worker, gateway=CONTEXT) as system:
        assert asked(system.gateway_url, tmp_path, seed=1, examples=2) == []
        system.wait_until_idle()
