"""Makes TLS contexts: a server's from a certificate and its key, followed when they change, and a client's."""

import asyncio
import logging
import os
import ssl
from pathlib import Path

from contracts.errors import ConfigError

CHECK_INTERVAL_S = 5.0  # s between two looks at whether the certificate or its key has changed
HANDSHAKE_SECONDS = 10.0  # s in which a client has to have shaken hands
CERT_OPTION, KEY_OPTION = "--tls-cert", "--tls-key"
log = logging.getLogger("baton.tls")


class Certificate:
    """Holds a certificate and its key, in a context for servers: TLS 1.2 or newer."""

    def __init__(self, cert: str, key: str) -> None:
        """Reads both files (PEM). Raises `ConfigError` for one without the other, and for a pair that cannot work."""
        for option, value, missing in ((CERT_OPTION, cert, KEY_OPTION), (KEY_OPTION, key, CERT_OPTION)):
            if not value:
                raise ConfigError(missing, cert or key, f"it goes with {option}, which is missing")
        self._cert, self._key = cert, key
        self._marks = self._look()
        self.context = self._read()

    async def follow(self) -> None:
        """Reads the files again when they change, for connections that begin then, until cancelled.

        A pair that cannot work, such as a new certificate whose key is not there yet, leaves the old one.
        """
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the files again if they have changed."""
        marks = self._look()
        if marks == self._marks:
            return
        self._marks = marks
        try:
            await asyncio.to_thread(self._read)
            self.context.load_cert_chain(self._cert, self._key, password="")
        except (ConfigError, OSError) as error:
            log.warning("%s; the certificate stays as it was", error)
        else:
            log.info("%s: the certificate was read again", self._cert)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(path) for path in (self._cert, self._key)]

    def _read(self) -> ssl.SSLContext:
        for option, path in ((CERT_OPTION, self._cert), (KEY_OPTION, self._key)):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(option, path, error.strerror or "cannot be read") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password="")  # nobody is there to be asked for one
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(KEY_OPTION, self._key, f"is not the key of the certificate in {self._cert}") from None
            why = "certificate and key are expected as PEM, the key without a password"
            raise ConfigError(CERT_OPTION, self._cert, f"cannot be used with {self._key}: {why}") from None
        return context


def certificate(cert: str, key: str) -> Certificate | None:
    """Returns the certificate of two settings, None where both are empty. Raises `ConfigError`."""
    return Certificate(cert, key) if cert or key else None


def trusting(path: str, option: str) -> ssl.SSLContext:
    """Returns a client's context. With a path it trusts these certificates alone, whatever name they are for.

    Without one it trusts what the system does. Raises `ConfigError` that names `option` if there is no certificate.
    """
    if not path:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate will do
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(option, path, f"is no file of certificates: {error.strerror or error}") from None
    return context


def own_probe() -> ssl.SSLContext:
    """Returns a context that trusts everybody, for probes of this host's own servers, which send nothing secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino
