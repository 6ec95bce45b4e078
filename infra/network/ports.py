"""Reads `--ports`, and checks before anything is loaded that a worker finds enough free ports there."""

import errno
import socket

from contracts.errors import ConfigError
from infra.config.transfer import TransferOptions
from infra.network.bind_address import BindAddress

PORT_USES = {"prefill": "for gateways", "decode": "for gateways, for handoffs and for KV over tcp"}
MAX_PORTS_SHOWN = 8


def parse_ports(text: str) -> range:
    """Returns the ports of `20000-20100`, both ends included; none for an empty text. Raises `ConfigError`."""
    if not text:
        return range(0)
    first, dash, last = text.partition("-")
    ends = [int(end) if end.isascii() and end.isdecimal() else 0 for end in (first, last if dash else first)]
    if not 0 < ends[0] <= ends[1] < 1 << 16:
        raise ConfigError("--ports", text, "is no range of ports such as 20000-20100")
    return range(ends[0], ends[1] + 1)


def listening_ports(role: str, transfer: TransferOptions) -> int:
    if role == "prefill":
        return 1
    return 3 if transfer.kv_transport in ("auto", "tcp") else 2


def check_ports(bind: BindAddress, role: str, transfer: TransferOptions) -> None:
    """Raises `ConfigError` if a worker's range has fewer free ports than it listens on."""
    ports = bind.ports
    if not ports:
        return
    needed = listening_ports(role, transfer)
    text = f"{ports.start}-{ports.stop - 1}"
    wants = (
        f"a {role} worker listens on {needed}: {PORT_USES[role] if needed != 2 else 'for gateways and for handoffs'}"
    )
    if len(ports) < needed:
        raise ConfigError("--ports", text, f"has {len(ports)} of them, and {wants}")
    free, taken = 0, []
    for port in ports:
        if _is_free(bind.host, port):
            free += 1
        else:
            taken.append(port)
        if free == needed:
            return
    named = ", ".join(map(str, taken[:MAX_PORTS_SHOWN])) + (
        "" if len(taken) <= MAX_PORTS_SHOWN else f" and {len(taken) - MAX_PORTS_SHOWN} more"
    )
    raise ConfigError("--ports", text, f"{free} of them free, other processes have {named}, and {wants}")


def _is_free(host: str, port: int) -> bool:
    """Whether a port can be bound. Raises `ConfigError` for any failure but a port in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError("--ports", port, f"cannot be listened on at {host}: {error.strerror}") from None
    return True
