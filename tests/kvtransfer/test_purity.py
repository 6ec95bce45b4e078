"""Tests that the protocol is pure: importing it loads neither torch nor zmq."""

import subprocess
import sys


def test_the_pure_sides_load_neither_torch_nor_zmq() -> None:
    code = "import sys, kvtransfer.receivers, kvtransfer.senders; print(sorted({'torch', 'zmq'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.strip() == "[]"
