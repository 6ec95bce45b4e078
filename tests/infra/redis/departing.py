"""A real Redis server that a service loses at a chosen command: its socket is cut, and refuses until it is let back."""

import asyncio
from contextlib import suppress
from pathlib import Path

from infra.process.ending import end

READ_BYTES = 1 << 16


class Departing:
    """Stands before the server at the Unix socket `real`. It is away from the first use of a command until `back`."""

    def __init__(self, real: Path, here: Path, command: bytes, answered: bool) -> None:
        """`answered`: the server still carries the command out, and only its answer is lost."""
        self.url = f"unix://{here}"
        self._real = real
        self._here = here
        self._command = b"\r\n%s\r\n" % command  # as a client writes it
        self._answered = answered
        self.away = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def back(self) -> None:
        self._server = await asyncio.start_unix_server(self._pass, self._here)

    async def leave(self) -> None:
        if self._server is not None:
            self._server.close()
        self._here.unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        real_reader, real_writer = await asyncio.open_unix_connection(str(self._real))
        self._writers += [writer, real_writer]
        answers = asyncio.create_task(_copy(real_reader, writer))
        with suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                if self._command in data and not self.away.is_set():
                    if self._answered:
                        await end([answers])
                        real_writer.write(data)
                        await real_reader.read(READ_BYTES)
                    self.away.set()
                    await self.leave()
                    return
                real_writer.write(data)
                await real_writer.drain()
        answers.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
