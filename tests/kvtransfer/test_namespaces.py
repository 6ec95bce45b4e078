"""KV passes through shared memory between two containers of one host: processes without a common PID namespace,
directory for temporary files or /dev/shm, which has 64 MiB, as Docker makes it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.config.transfer import TransferConfig
from tests.e2e.harness.host import need_root_and
from tests.kvtransfer.lone_end import BLOCKS
from tests.waiting import wait_until

SHM_BYTES = 64 << 20
CONFIG = TransferConfig(kv_transport="shm", window=SHM_BYTES + (8 << 20))
QUICK = msgspec.structs.replace(CONFIG, repeat_ms=50, verify_deadline=2.0, silence=2.0, remember=2.0)
APART = ("unshare", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc")
MOUNTED = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && mount -t tmpfs tmpfs "$TMPDIR" && exec "$@"'


class Contained:
    """An end of handoffs in namespaces of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, order: str) -> dict[str, Any]:
        """Has an order carried out."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def kill(self) -> None:
        """Kills it, as a container is killed."""
        self.process.kill()
        self.process.wait()


@contextmanager
def contained(directory: Path, name: str, config: TransferConfig, address: str = "") -> Iterator[Contained]:
    """Starts an end, until exit."""
    own = directory / name
    own.mkdir()
    command = [sys.executable, "-m", "tests.kvtransfer.lone_end", msgspec.json.encode(config).decode(), address]
    with subprocess.Popen(
        [*APART, "sh", "-c", MOUNTED, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(own)},
    ) as process:
        end = Contained(process)
        try:
            yield end
        finally:
            end.kill()


Ends = tuple[Contained, Contained]


@contextmanager
def both_ends(directory: Path, config: TransferConfig) -> Iterator[Ends]:
    """Starts a sender and a receiver."""
    with contained(directory, "receiver", config) as receiver:
        address = receiver.ask("address")["address"]
        with contained(directory, "sender", config, address) as sender:
            yield sender, receiver


@contextmanager
def sharing(tmp_path: Path, config: TransferConfig) -> Iterator[Ends]:
    """Starts a sender and a receiver that share a directory for sockets."""
    need_root_and(unshare="util-linux", mount="mount")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    with both_ends(tmp_path, msgspec.structs.replace(config, kv_directory=str(shared))) as found:
        yield found


def handed_off(sender: Contained, number: int) -> dict[str, Any]:
    """Makes a handoff."""
    for order in ("open", "granted", "compute"):
        sender.ask(f"{order} {number}")
    return sender.ask(f"commit {number}")


def test_kv_passes_between_containers_through_memory_larger_than_their_dev_shm(tmp_path: Path) -> None:
    with sharing(tmp_path, CONFIG) as (sender, receiver):
        for number in range(4):  # until each page of the ring was used
            sent = handed_off(sender, number)
            landed = receiver.ask(f"landed {number}")
            assert sent == {"outcome": "accepted", "over": ["shm"], "bytes": landed["bytes"]}
            receiver.ask(f"release {number}")
        for end in (sender, receiver):
            usage = end.ask("usage")
            assert usage["process"] == 1 and usage["room"] == [SHM_BYTES, SHM_BYTES]
            assert usage["shared"] >= CONFIG.window


def test_kv_is_copied_between_containers_into_the_other_ones_pool(tmp_path: Path) -> None:
    with sharing(tmp_path, msgspec.structs.replace(CONFIG, kv_transport="pool")) as (sender, receiver):
        for number in range(2):
            sent = handed_off(sender, number)
            landed = receiver.ask(f"landed {number}")
            assert sent == {"outcome": "accepted", "over": ["pool"], "bytes": landed["bytes"]}
            receiver.ask(f"release {number}")


def test_blocks_are_not_reused_while_a_writer_that_is_not_heard_from_may_write_them(tmp_path: Path) -> None:
    """The sender is killed in the middle of a write; its process id says nothing to the receiver."""
    with sharing(tmp_path, msgspec.structs.replace(QUICK, kv_transport="pool")) as (sender, receiver):
        handed_off(sender, 0)
        receiver.ask("landed 0")
        receiver.ask("release 0")
        sender.ask("open 1")
        sender.ask("granted")
        sender.ask("write 1")
        assert receiver.ask("cancel 1") == {"free": 0, "quarantined": len(BLOCKS)}
        sender.kill()
        assert receiver.ask("reuse 1") == {"foreign": 0}


STATES = ["asked", "granted", "streaming", "accepted"]


def brought(sender: Contained, receiver: Contained, state: str) -> None:
    """Brings handoff 1 into a state."""
    if state == "asked":
        receiver.ask("hold")
    sender.ask("open 1")
    if state == "asked":
        receiver.ask("asked")
    else:
        sender.ask("granted")
    if state in ("streaming", "accepted"):
        sender.ask("compute 1")
    if state == "accepted":
        sender.ask("commit 1")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("killed", ["sender", "receiver"])
def test_an_end_that_is_killed_leaves_nothing_behind(tmp_path: Path, killed: str, state: str) -> None:
    with sharing(tmp_path, QUICK) as (sender, receiver):
        dying, left = (sender, receiver) if killed == "sender" else (receiver, sender)
        before = left.ask("usage")
        brought(sender, receiver, state)
        dying.kill()
        left.ask(f"alone {1 if left is sender else 0}")
        # A connection that is tried again has a descriptor for a moment.
        wait_until(lambda: left.ask("usage")["descriptors"] <= before["descriptors"], "the end of the descriptors")
        assert left.ask("usage")["shared"] == before["shared"]


def test_containers_without_a_shared_directory_take_another_way(tmp_path: Path) -> None:
    need_root_and(unshare="util-linux", mount="mount")
    with both_ends(tmp_path, msgspec.structs.replace(CONFIG, kv_transport="auto")) as (sender, receiver):
        sent = handed_off(sender, 0)
        assert sent == {"outcome": "accepted", "over": ["tcp"], "bytes": receiver.ask("landed 0")["bytes"]}
