"""TLS contexts: a server's, from a certificate that is followed when it changes, and a client's."""

import asyncio
import logging
import ssl
from pathlib import Path

from contracts.errors import ConfigError
from infra.file_version import FileVersion, file_version

CHECK_INTERVAL_S = 5.0  # between two checks for a changed certificate or key
HANDSHAKE_SECONDS = 10.0  # limit for a client's handshake
CERT_OPTION, KEY_OPTION = "--tls-cert", "--tls-key"
log = logging.getLogger("baton.tls")


class Certificate:
    """A certificate and its key, in a server context: TLS 1.2 or newer."""

    def __init__(self, cert: str, key: str) -> None:
        """Reads both files (PEM). Raises `ConfigError` if one is missing, or if the pair cannot be used."""
        for option, value, missing in ((CERT_OPTION, cert, KEY_OPTION), (KEY_OPTION, key, CERT_OPTION)):
            if not value:
                raise ConfigError(missing, cert or key, f"it goes with {option}, which is missing")
        self._cert, self._key = cert, key
        self._versions = self._file_versions()
        self.context = self._read()

    async def follow(self) -> None:
        """Reads changed files again, for new connections, until cancelled.

        A pair that cannot be used, such as a new certificate without its new key, leaves the old one in place.
        """
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the files again if they have changed."""
        versions = self._file_versions()
        if versions == self._versions:
            return
        self._versions = versions
        try:
            await asyncio.to_thread(self._read)
            self.context.load_cert_chain(self._cert, self._key, password="")
        except (ConfigError, OSError) as error:
            log.warning("%s; the certificate stays as it was", error)
        else:
            log.info("%s: the certificate was read again", self._cert)

    def _file_versions(self) -> list[FileVersion | None]:
        return [file_version(path) for path in (self._cert, self._key)]

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
            # fails at once for an encrypted key, instead of asking
            context.load_cert_chain(self._cert, self._key, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(KEY_OPTION, self._key, f"is not the key of the certificate in {self._cert}") from None
            why = "certificate and key are expected as PEM, the key without a password"
            raise ConfigError(CERT_OPTION, self._cert, f"cannot be used with {self._key}: {why}") from None
        return context


def certificate(cert: str, key: str) -> Certificate | None:
    """Returns the certificate of two settings, None if both are empty. Raises `ConfigError`."""
    return Certificate(cert, key) if cert or key else None


def trusting(path: str, option: str) -> ssl.SSLContext:
    """Returns a client's context. With a path it trusts only these certificates, for any host name.

    Without a path it trusts the system's certificates. Raises `ConfigError` that names `option`.
    """
    if not path:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate suffices
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(option, path, f"is no file of certificates: {error.strerror or error}") from None
    return context


def trusting_any_server() -> ssl.SSLContext:
    """Returns a context that trusts any server, for probes of this host's own servers, which send nothing secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
