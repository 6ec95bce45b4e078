"""One whole system on the demo model, shared by the tests that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness.forks import ROOT
from tests.e2e.harness.system import System

DEMO = ROOT / "demo_model" / "weights"


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory: Path = tmp_path_factory.mktemp("system")
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
    with System(directory, DEMO, prefill=2, decode=2, worker=worker, dashboard=True) as running:
        yield running
