"""A process may have as many descriptors as the system allows."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from infra.process.descriptors import raise_limit
assert raise_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    """In a process of its own, whose limit is nobody else's."""
    subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, check=True)
