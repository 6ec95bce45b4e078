"""Disturbs a gateway in one of three ways, until it is ended: a process that `benchmarks.front` starts.

`idle` holds open connections, `connects` opens and closes `--count` connections a second, and `slow` asks for streams
that it never reads. It prints `begun` when all connections are open.
"""

import argparse
import asyncio
import socket
import sys

import uvloop

from infra.process.descriptors import raise_limit

MAX_OPENING_CONNECTIONS = 200  # connections that are being opened
SLOW_READER_BUFFER_BYTES = 4096  # bytes of a slow reader's buffer


async def opened(options: argparse.Namespace, said: bytes = b"", read: bool = True) -> socket.socket:
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    if not read:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READER_BUFFER_BYTES)
    await loop.sock_connect(connection, (options.host, options.port))
    if said:
        await loop.sock_sendall(connection, said)
    return connection


async def hold(options: argparse.Namespace) -> None:
    body = options.body.encode()
    head = (
        f"POST {options.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    said = head.encode() + b"\r\n" + body if options.how == "slow" else b""
    held: list[socket.socket] = []
    while len(held) < options.count:
        many = min(MAX_OPENING_CONNECTIONS, options.count - len(held))
        held += await asyncio.gather(*(opened(options, said, read=False) for _ in range(many)))
    print("begun", flush=True)
    await asyncio.Event().wait()


async def connect(options: argparse.Namespace) -> None:
    print("begun", flush=True)
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        (await opened(options)).close()
        due += 1 / options.count
        await asyncio.sleep(max(0.0, due - loop.time()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=("idle", "connects", "slow"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="")
    parser.add_argument("--body", default="", help="JSON")
    parser.add_argument("--count", type=int, required=True, help="connections, or connects a second")
    options = parser.parse_args()
    raise_limit()
    uvloop.run(connect(options) if options.how == "connects" else hold(options))
    sys.exit(0)


if __name__ == "__main__":
    main()
