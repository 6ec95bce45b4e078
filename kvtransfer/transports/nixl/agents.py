"""Runs NVIDIA's NIXL library for one worker: makes agents in a thread of their own, the only thread that uses them.

A call of the library takes up to some tens of milliseconds, without Python's lock. Its own progress thread is off: it
takes half a core while nothing happens. Instead, ends of links call for progress while they expect something.
"""

import asyncio
import fcntl
import importlib
import os
import secrets
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from contracts.errors import ConfigError
from infra.network.bind_address import WILDCARD_ADDRESSES
from infra.process.tasks import Tasks

NIXL_BACKEND = "UCX"
PACKAGE_EXTRA = "nixl"  # of pyproject.toml
RDMA_DEVICES = Path("/sys/class/infiniband")
START_TIMEOUT_S, CLOSE_TIMEOUT_S = 60.0, 5.0
NAME_BYTES = 16  # of an interface in an ioctl
INTERFACE_REQUEST_BYTES = 40
SIOCGIFADDR = 0x8915  # netdevice(7): reads an interface's IPv4 address
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def has_rdma() -> bool:
    """Whether this host has an RDMA device, and the library that would use it."""
    return find_spec("nixl") is not None and RDMA_DEVICES.is_dir() and any(RDMA_DEVICES.iterdir())


class NixlAgents:
    """The thread of a worker's agents, and the tasks that use it."""

    def __init__(self, host: str) -> None:
        """Starts the library; without RDMA it listens at `host`, the address to bind. Raises `ConfigError`."""
        if find_spec("nixl") is None:
            raise ConfigError(
                "--kv-transport", "nixl", f"the package nixl is not installed: it is in the extra {PACKAGE_EXTRA!r} of"
                " pyproject.toml (pip install -c constraints.txt nixl)"
            )  # fmt: skip
        for name, value in library_settings(host).items():
            os.environ.setdefault(name, value)
        self.tasks = Tasks("the handoff over NIXL")
        self._thread = ThreadPoolExecutor(1, "nixl")
        try:
            self._first: Any = self._thread.submit(self._make).result(START_TIMEOUT_S)  # for the first link
        except Exception as error:
            self._thread.shutdown(wait=False)
            raise ConfigError("--kv-transport", "nixl", f"the library does not start: {error!r}") from None

    def agent(self) -> Any:
        """Returns a new agent, in up to half a second; deleting it ends its connections, and its registrations."""
        first, self._first = self._first, None
        return self._make() if first is None else first

    def _make(self) -> Any:
        library: ModuleType = importlib.import_module("nixl")
        return library.nixl_agent(
            secrets.token_hex(), library.nixl_agent_config(enable_prog_thread=False, backends=[NIXL_BACKEND])
        )

    async def call(self, work: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs) -> Result:
        """Runs `work` in the agents' thread, in the order of the calls."""
        return await asyncio.wrap_future(self._thread.submit(work, *args, **more))

    def call_now(self, work: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs) -> Result:
        """Does the same, and blocks the caller until it is done."""
        return self._thread.submit(work, *args, **more).result(START_TIMEOUT_S)

    async def close(self) -> None:
        """Waits up to `CLOSE_TIMEOUT_S` for tasks that were told to end, then ends them."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.tasks.finished()
        except TimeoutError:
            await self.tasks.close()
        self._first = None
        self._thread.shutdown(wait=False)


def library_settings(host: str) -> dict[str, str]:
    """Returns environment variables of the library, where the user has set none.

    Without an RDMA device UCX uses TCP, and would listen on every interface, for anyone.
    """
    quiet = {"NIXL_LOG_LEVEL": "WARN"}
    if has_rdma():
        return quiet
    bound = {} if host in WILDCARD_ADDRESSES else {"UCX_NET_DEVICES": _interface(host)}
    return quiet | {"UCX_TLS": "tcp"} | bound


def _interface(host: str) -> str:
    """Returns the name of the interface with this address. Raises `ConfigError` if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{NAME_BYTES}s{INTERFACE_REQUEST_BYTES - NAME_BYTES}x", name.encode())
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == host:  # sockaddr_in behind the name: family, port, address
                return name
    raise ConfigError("--kv-transport", "nixl", f"no interface has the IPv4 address {host} to listen at (--host)")
