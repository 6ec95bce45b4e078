"""Connects to a Ray cluster, with an error sentence for each known failure."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from contracts.errors import BatonError
from launcher.on_ray.placement import NodeResources
from launcher.words import BAD_INPUT_STATUS

TCP_TIMEOUT_S = 5.0  # of the head node
CONNECT_TIMEOUT_S = 25.0  # for `ray.init`


class ClusterError(BatonError):
    """A Ray cluster cannot be used; the message names the remedy."""


@contextmanager
def connected(address: str, namespace: str, runtime_env: dict[str, Any] | None = None) -> Iterator[None]:
    """Connects this process to the cluster at `address`, until exit. Raises `ClusterError`.

    What the cluster's actors print comes to this process's stdout.
    """
    where = _reached(address)
    late = threading.Timer(CONNECT_TIMEOUT_S, _give_up, (where,))
    late.daemon = True
    late.start()
    try:
        ray.init(
            address=where,
            namespace=namespace,
            runtime_env=runtime_env,
            configure_logging=False,
            log_to_driver=runtime_env is not None,
        )
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        raise ClusterError(_sentence(where, error)) from None
    finally:
        late.cancel()
    try:
        yield
    finally:
        ray.shutdown()


def node_resources() -> dict[str, NodeResources]:
    """Returns node id → resources, for each living node."""
    free = ray._private.state.available_resources_per_node()
    return {
        node["NodeID"]: NodeResources(node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    }


def _reached(address: str) -> str:
    """Returns `host:port` of a head node that takes connections. Raises `ClusterError`."""
    if address.startswith("ray://"):
        raise ClusterError(
            f"--ray-address: {address!r}: Ray's client protocol is not spoken; run this on a node of the cluster, with"
            " --ray-address auto"
        )
    where = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if where == "auto":
        try:
            where = ray._private.services.canonicalize_bootstrap_address("auto") or ""
        except ConnectionError:
            raise ClusterError(
                "--ray-address: 'auto': no Ray runs on this host; ./baton ray start --head starts a cluster,"
                " ./baton ray start --address HOST:PORT joins one"
            ) from None
    host, _, port = where.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TCP_TIMEOUT_S):
            return where
    except ValueError:
        raise ClusterError(f"--ray-address: {address!r}: is neither auto nor HOST:PORT of a head node") from None
    except TimeoutError:
        raise ClusterError(f"--ray-address: {where!r}: no answer within {TCP_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise ClusterError(f"--ray-address: {where!r}: {error.strerror or error}") from None


def _sentence(where: str, error: Exception) -> str:
    text = str(error)
    if "Version mismatch" in text:
        found = [line.strip().replace(": ", " ") for line in text.splitlines() if line.startswith("    ")]
        return (
            f"--ray-address: {where!r}: the cluster has {' and '.join(found[:2])}, this host {' and '.join(found[2:4])}"
        )
    if "node" in text.lower() and not isinstance(error, ValueError):
        return (
            f"--ray-address: {where!r}: this host is no node of that cluster; ./baton ray start --address {where}"
            f" makes it one ({text.splitlines()[0]})"
        )
    return f"--ray-address: {where!r}: {text.splitlines()[0] if text else type(error).__name__}"


def _give_up(where: str) -> None:
    """Ends the process: nothing interrupts this call of Ray. No service has been started yet."""
    print(
        f"error: --ray-address: {where!r}: no Ray answers there within {CONNECT_TIMEOUT_S:.0f} s",
        file=sys.__stderr__,
        flush=True,
    )
    os._exit(BAD_INPUT_STATUS)
