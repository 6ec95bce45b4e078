"""Settings of a gateway."""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import (
    AccessLog,
    Address,
    AllowLoRALoading,
    APIKeys,
    Bytes,
    Count,
    FilePath,
    HandoffRule,
    LogFormat,
    LogLevel,
    LoRARoot,
    ModelSource,
    Port,
    Positive,
    ReasoningParser,
    Seconds,
    ServedNames,
    Slo,
    SpelledTokens,
    StatusPath,
    StoreBytes,
    StoreTTL,
    TLSCert,
    TLSKey,
    ToolParser,
    TPOTLimit,
    TraceEndpoint,
    TraceSample,
    TTFTLimit,
    UnknownFieldsRule,
)
from infra.config.store import StoreConfig


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """Serves the OpenAI API over HTTP, and sends requests to the workers."""

    model: Annotated[
        ModelSource, Meta(description="directory in Hugging Face format, or a hub id; its tokenizer is read")
    ]
    store: StoreConfig = StoreConfig()
    host: Annotated[Address, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="HTTP port; 0: chosen by the system")] = 8000
    gateways: Annotated[
        Positive, Meta(description="gateway processes on this port; with several, this process only supervises them")
    ] = 1
    share_port: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            max_length=64,
            description="name of the gateways of one user that share the port; empty: the port is not shared",
        ),
    ] = ""
    served_model_name: ServedNames = ""
    max_model_len: Annotated[int, Meta(ge=0, description="longest prompt + answer in tokens; 0: the model's own")] = 0
    status_file: StatusPath = ""
    unloaded_file: Annotated[
        FilePath,
        Meta(description="file of the launcher that is there while the model is unloaded; empty: it stays loaded"),
    ] = ""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    access_log: AccessLog = True
    trace_endpoint: TraceEndpoint = ""
    trace_sample: TraceSample = 0.01
    handoff: HandoffRule = "auto"
    request_timeout: Annotated[Seconds, Meta(description="maximum duration of a request, in seconds")] = 600.0
    drain_seconds: Annotated[Seconds, Meta(description="seconds for answers in progress to finish at a shutdown")] = (
        10.0
    )
    max_requests: Annotated[
        Positive, Meta(description="maximum number of answers in progress; further requests wait for their turn")
    ] = 1024
    max_waiting: Annotated[
        Count,
        Meta(
            description="maximum number of waiting requests (at most half of them of one tenant that wait for a moment"
            " at which they can keep their objective); more are refused with 429"
        ),
    ] = 256
    max_samples: Annotated[Positive, Meta(description="largest n (answers to one prompt)")] = 16
    max_body: Annotated[Bytes, Meta(description="largest request body")] = 4 << 20
    link_prompt: Annotated[
        Positive,
        Meta(
            description="length in tokens from which a prompt is sent to its worker over the gateway's connection "
            "instead of Redis"
        ),
    ] = 16_384
    body_memory: Annotated[
        Bytes, Meta(description="memory for request bodies being read; beyond it requests are answered with 503")
    ] = 256 << 20
    max_connections: Annotated[
        Positive,
        Meta(
            description="maximum number of open connections; beyond it an idle connection is closed, or the new one "
            "is refused with 503"
        ),
    ] = 4096
    allow_origins: Annotated[
        str,
        Meta(
            extra={"metavar": "ORIGINS"},
            description="web origins whose pages may call this server from a browser, separated by commas; *: all; "
            "empty: none",
        ),
    ] = "*"
    spelled_tokens: SpelledTokens = "text"
    store_ttl: StoreTTL = 86400.0
    store_bytes: StoreBytes = 256 << 20
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    unknown_fields: UnknownFieldsRule = "refuse"
    lora_root: LoRARoot = ""
    allow_lora_loading: AllowLoRALoading = False
    api_keys: APIKeys = ()
    tls_cert: TLSCert = ""
    tls_key: TLSKey = ""
    slo: Slo = ""
    slo_ttft_ms: TTFTLimit = 2000.0
    slo_tpot_ms: TPOTLimit = 100.0
