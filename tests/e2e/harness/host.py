"""The host that a service of a tested system runs on: this one, or a network namespace that stands in for another.

A namespace has interfaces, addresses and ports of its own and shares everything else, so that services there use the
same files. It needs root and `ip` (Debian package iproute2).
"""

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000  # sched.h
LIBC = ctypes.CDLL(None, use_errno=True)
numbers = itertools.count()


@dataclass(frozen=True)
class Host:
    """A network namespace by name, or this process's own where the name is empty; services bind `address`."""

    namespace: str = ""
    address: str = "127.0.0.1"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile, and processes that it starts, are in the namespace."""
        if not self.namespace:
            yield
            return
        with Path("/proc/thread-self/ns/net").open() as before, (NAMESPACES / self.namespace).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


THIS_HOST = Host()


@contextmanager
def namespace(name: str, address: str = "127.0.0.1") -> Iterator[Host]:
    """A new namespace with nothing but its loopback interface. It is gone when its last process and device are."""
    host = Host(f"baton-{os.getpid()}-{next(numbers)}-{name}", address)
    ip("netns", "add", host.namespace)
    try:
        ip("-n", host.namespace, "link", "set", "lo", "up")
        yield host
    finally:
        ip("netns", "delete", host.namespace)


def ip(*arguments: str) -> None:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, f"ip {' '.join(arguments)}: {result.stderr.strip()}"


def need_root_and(**packages: str) -> None:
    """Programs by their Debian package. Without them or root the test is red in CI, and skipped elsewhere."""
    missing = [f"{program} (Debian package {package})" for program, package in packages.items() if not which(program)]
    if os.geteuid() != 0:
        missing.insert(0, "root, for network namespaces")
    if missing:
        reason = f"this test needs {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; .ci/run installs what it needs")
        pytest.skip(reason)


def which(program: str) -> str | None:
    """As `shutil.which`, looking also where Debian keeps programs for root."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _enter(descriptor: int) -> None:
    """setns(2), of this thread only; Python has it from 3.12 on."""
    if LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
