"""Where this process listens."""

import os
import socket
from pathlib import Path

from tests.fuzz.processes import listening


def test_tcp_and_unix_sockets_that_take_connections_are_found(tmp_path: Path) -> None:
    before = set(listening(os.getpid()))
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "door"))
        unix.listen()
        with socket.create_connection(tcp.getsockname()):
            found = set(listening(os.getpid())) - before
        assert found == {f"tcp://127.0.0.1:{tcp.getsockname()[1]}", f"ipc://{tmp_path / 'door'}"}
    assert set(listening(os.getpid())) == before
