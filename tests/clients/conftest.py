"""One whole system on the demo model in fp32, and Node.js with the official clients, for the tests of clients."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.waiting import LONG_DEADLINE_S

NODE = Path(__file__).parent / "node"
AT_ONCE = 4  # answers that the gateway takes at once, so that a test can see it refuse one
NO_LINE = ("--max-requests", str(AT_ONCE), "--max-waiting", "0")


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory: Path = tmp_path_factory.mktemp("system")
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB")
    with System(directory, DEMO, worker=worker, gateway=NO_LINE) as running:
        yield running


@pytest.fixture(scope="package")
def node() -> str:
    """Returns Node.js, when the packages of tests/clients/node are there in the versions of its lock file."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.fail("node or npm is not on the PATH; install the Debian packages `nodejs` and `npm`")
    wanted = hashlib.sha256((NODE / "package-lock.json").read_bytes()).hexdigest()
    stamp = NODE / "node_modules" / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        command = [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=LONG_DEADLINE_S)
        assert done.returncode == 0, f"npm ci failed:\n{done.stdout}{done.stderr}"
        stamp.write_text(wanted)
    return program
