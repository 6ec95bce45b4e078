"""Settings of KV handoffs between workers."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.kinds import Bytes, Codec, Positive, Seconds, Security


class TransferOptions(Struct, frozen=True, kw_only=True):
    """Transport, sealing and codec of KV between workers."""

    kv_transport: Annotated[
        Literal["auto", "shm", "ipc", "tcp"],
        Meta(
            description="how KV passes: tcp between hosts, on one host ipc (a Unix socket) or shm (a ring in shared "
            "memory); auto: the best that both workers have"
        ),
    ] = "auto"
    kv_security: Annotated[
        Security,
        Meta(
            description="KV over tcp is sealed (AES-256-GCM), or none: in clear, if both workers say so; on one host "
            "the system's permissions protect it"
        ),
    ] = "sealed"
    kv_codec: Annotated[
        Codec,
        Meta(
            description="KV passes as it is (none), or as fp8 or int8 with a scale per block and head, which halves "
            "bf16's bytes and is lossy"
        ),
    ] = "none"
    link_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="TCP connections that KV takes from a prefill to a decode worker, where one does not fill the "
            "network between them: far, or losing packets",
        ),
    ] = 1


class TransferConfig(TransferOptions, frozen=True, kw_only=True):
    """Settings of KV handoffs, with all limits and deadlines."""

    kv_codec_below: Annotated[
        float, Meta(ge=0, description="use the codec on links of fewer GB/s than this only; 0: on all")
    ] = 0.0
    grants_waiting: Annotated[
        Positive, Meta(description="handoffs that may wait for room on a decode worker; others ask again")
    ] = 1024
    malformed_rate: Annotated[Positive, Meta(description="malformed frames a second after which a peer is cut off")] = (
        64
    )
    cut_off: Annotated[Seconds, Meta(description="seconds for which a peer that was cut off is not listened to")] = 30.0
    window: Annotated[Bytes, Meta(description="KV bytes that may be in flight on one link")] = 32 << 20
    frame: Annotated[
        int,
        Meta(
            ge=0, le=16 << 20, extra={"unit": "bytes"}, description="largest KV payload; over ZeroMQ 1 MiB is fastest"
        ),
    ] = 1 << 20
    repeat_ms: Annotated[float, Meta(gt=0, description="milliseconds until an unanswered message is repeated")] = 200.0
    grant_deadline: Annotated[
        Seconds, Meta(description="seconds without an answer of a decode worker that was asked for room")
    ] = 30.0
    verify_deadline: Annotated[
        Seconds, Meta(description="seconds without a payload after which a handoff that was committed is given up")
    ] = 5.0
    silence: Annotated[Seconds, Meta(description="seconds after which a silent peer counts as dead")] = 5.0
    remember: Annotated[Seconds, Meta(description="seconds that ended handoffs and cancels are remembered")] = 600.0
    waiting_share: Annotated[
        float, Meta(gt=0, le=1, description="share of the prefill pool that may wait for one decode worker")
    ] = 0.5
