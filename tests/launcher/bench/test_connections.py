"""The load generator's connections, against servers that answer byte by byte, badly, or not at all."""

import asyncio
import ssl
from pathlib import Path

import pytest

from contracts.errors import GatewayError
from infra.network.tls import Certificate, trusting
from launcher.bench.connections import LoadConnections
from tests.certificates import make_certificate
from tests.waiting import DEADLINE_S

WHOLE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto the end"
REFUSED = b'HTTP/1.1 503 Busy\r\ncontent-length: 34\r\n\r\n{"error":{"message":"no workers"}}'
HINTED = b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE
CLOSE = b""


class Heard:
    """Keeps what came and when; what begins with `bad` is no answer."""

    def __init__(self) -> None:
        self.text, self.times = "", list[float]()

    def feed(self, data: bytes, at: float) -> None:
        self.text += data.decode()
        self.times.append(at)
        if self.text.startswith("bad"):
            raise GatewayError("these are no events")


class RawServer:
    """Answers the requests in turn, byte by byte; `CLOSE` closes the connection."""

    def __init__(self, *answers: bytes) -> None:
        self.connections, self.requests = 0, list[bytes]()
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self._answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            answer = self._answers.pop(0)
            for at in range(len(answer)):
                writer.write(answer[at : at + 1])
                await writer.drain()
            if answer in (LAST, CLOSE):
                break
        writer.close()

    async def posted(self, times: int = 1, tls: Path | None = None, timeout_s: float = DEADLINE_S) -> list[str]:
        """Posts one after the other; returns what was heard of each, or the error."""
        server = Certificate(str(tls / "cert.pem"), str(tls / "key.pem")).context if tls else None
        client = trusting(str(tls / "cert.pem"), "--cert") if tls else None
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=server) as listening:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/base"
            return await posted(url, times, client, timeout_s)


async def posted(url: str, times: int, context: ssl.SSLContext | None, timeout_s: float) -> list[str]:
    found = []
    async with LoadConnections(url, {"authorization": "Bearer k"}, timeout_s, context) as connections:
        for _ in range(times):
            heard = Heard()
            try:
                await connections.post("/v1/x", b"body", heard)
                assert heard.times == sorted(heard.times) and 0 < len(heard.times) <= len(heard.text)
                found.append(heard.text)
            except GatewayError as error:
                found.append(str(error))
    return found


async def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    server = RawServer(WHOLE, REFUSED, HINTED, LAST, WHOLE)
    assert await server.posted(5) == ["abcde", "status 503: no workers", "abcde", "to the end", "abcde"]
    assert server.connections == 2
    head = server.requests[0].lower()
    assert head.startswith(b"post /base/v1/x http/1.1\r\nhost: 127.0.0.1:") and b"authorization: bearer k" in head
    assert server.requests[0].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "the answer is no HTTP"),
        (CLOSE, "closed unanswered"),
        (WHOLE.replace(b"abc", b"bad"), "these are no events"),
    ],
)
async def test_what_is_no_answer_is_an_error_and_the_next_request_has_a_new_connection(
    answer: bytes, error: str
) -> None:
    server = RawServer(answer, WHOLE)
    first, second = await server.posted(2)
    assert error in first and second == "abcde" and server.connections == 2


async def test_a_server_that_says_nothing_is_given_up() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", WHOLE)
    assert await server.posted(2, timeout_s=0.1) == ["no byte for 0.1 s", "abcde"]


async def test_a_certificate_is_trusted_by_its_file(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    assert await RawServer(WHOLE).posted(tls=tmp_path) == ["abcde"]
