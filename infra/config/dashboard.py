"""Settings of the dashboard."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import Port, RedisURL, StatusPath, TLSCert, TLSKey


class DashboardConfig(Struct, frozen=True, kw_only=True):
    """Shows workers and requests on a web page."""

    redis: RedisURL = "redis://127.0.0.1:6379"
    gateway: Annotated[str, Meta(description="URL of the gateway, for the Try it box")] = "http://127.0.0.1:8000"
    gateway_cert: Annotated[
        str, Meta(description="file with the certificate to trust at an https gateway; empty: those of the system")
    ] = ""
    api_key_file: Annotated[
        str, Meta(description="file with the API key that the Try it box asks with; empty: it has none")
    ] = ""
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="file of API keys; may be repeated. With one, the page opens for operators only: a browser "
            "asks for a name, which is any, and a password, which is the key"
        ),
    ] = ()
    tls_cert: TLSCert = ""
    tls_key: TLSKey = ""
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="HTTP port; 0: chosen by the system")] = 8501
    status_file: StatusPath = ""
