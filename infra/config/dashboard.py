"""Settings of the dashboard."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import Address, FilePath, Port, RedisURL, StatusPath, TLSCert, TLSKey, URLText


class DashboardConfig(Struct, frozen=True, kw_only=True):
    """Shows workers and requests on a web page."""

    redis: RedisURL = "redis://127.0.0.1:6379"
    gateway: Annotated[URLText, Meta(description="URL of the gateway, for the Try it box")] = "http://127.0.0.1:8000"
    gateway_cert: Annotated[
        FilePath,
        Meta(description="file with the certificate to trust at an https gateway; empty: the system's certificates"),
    ] = ""
    api_key_file: Annotated[FilePath, Meta(description="file with the API key for the Try it box; empty: no key")] = ""
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "FILE"},
            description="file of API keys; may be repeated. With a file, only operators can open the page: the browser"
            " asks for a name (any) and a password (the key)",
        ),
    ] = ()
    tls_cert: TLSCert = ""
    tls_key: TLSKey = ""
    host: Annotated[Address, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="HTTP port; 0: chosen by the system")] = 8501
    status_file: StatusPath = ""
