"""A certificate works or is refused in a sentence, is followed when it changes, and is trusted by who is told to."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from infra.network.tls import Certificate, certificate, trusting, trusting_any_server
from tests.certificates import make_certificate

Spoil = Callable[[Path, Path, Path], tuple[str, str]]


async def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """The certificate that a client is shown, by a real handshake. Raises what the client does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="elsewhere.test")
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
    assert isinstance(shown, bytes)
    return shown


def test_none_is_http_and_a_pair_is_tls_1_2_or_newer(tmp_path: Path) -> None:
    assert certificate("", "") is None
    cert, key = make_certificate(tmp_path)
    found = certificate(str(cert), str(key))
    assert found is not None and found.context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda cert, key, other: (str(cert), ""), "--tls-cert: .*it goes with --tls-key, which is missing"),
        (lambda cert, key, other: ("", str(key)), "--tls-key: .*it goes with --tls-cert, which is missing"),
        (lambda cert, key, other: (f"{cert}x", str(key)), "--tls-cert: .*No such file"),
        (lambda cert, key, other: (str(cert), f"{key}x"), "--tls-key: .*No such file"),
        (lambda cert, key, other: (str(cert), str(other)), "--tls-key: .*is not the key of the certificate"),
        (lambda cert, key, other: (str(key), str(key)), "--tls-cert: .*expected as PEM"),
        (lambda cert, key, other: (str(cert), str(cert)), "--tls-cert: .*expected as PEM"),
    ],
)
def test_a_pair_that_cannot_work_is_one_sentence(tmp_path: Path, spoil: Spoil, said: str) -> None:
    cert, key = make_certificate(tmp_path / "one")
    _, other = make_certificate(tmp_path / "other")
    with pytest.raises(ConfigError, match=said) as refused:
        certificate(*spoil(cert, key, other))
    assert "\n" not in str(refused.value)


def test_a_key_with_a_password_asks_nobody_for_it(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, password=b"secret")
    with pytest.raises(ConfigError, match="without a password"):
        certificate(str(cert), str(key))


async def test_a_certificate_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = make_certificate(tmp_path)
    found = Certificate(str(cert), str(key))
    old = await shaken(found.context, trusting_any_server())
    new, its_key = make_certificate(tmp_path / "new")
    new.replace(cert)
    for _ in range(2):
        await found.refresh()
        assert await shaken(found.context, trusting_any_server()) == old, "its key is not there yet"
    (line,) = [entry.getMessage() for entry in caplog.records if "stays as it was" in entry.getMessage()]
    assert "is not the key" in line
    its_key.replace(key)
    await found.refresh()
    assert await shaken(found.context, trusting_any_server()) == ssl.PEM_cert_to_DER_cert(cert.read_text()) != old


async def test_a_client_trusts_what_it_is_told_and_nobody_else(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    other, _ = make_certificate(tmp_path / "other")
    server = Certificate(str(cert), str(key)).context
    assert await shaken(server, trusting(str(cert), "--ca"))
    for path in (str(other), ""):
        with pytest.raises(ssl.SSLCertVerificationError):
            await shaken(server, trusting(path, "--ca"))
    for nothing in (str(key), f"{cert}x"):
        with pytest.raises(ConfigError, match=r"--ca: .*is no file of certificates"):
            trusting(nothing, "--ca")
