"""Settings of KV handoffs between workers."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.kinds import Bytes, Codec, DirectoryPath, Positive, Seconds, Security


class TransferOptions(Struct, frozen=True, kw_only=True):
    """Transport, sealing and codec of KV between workers."""

    kv_transport: Annotated[
        Literal["auto", "pool", "shm", "ipc", "nixl", "tcp"],
        Meta(
            description="transport of KV between workers: tcp or nixl (RDMA, by the extra nixl) between hosts, on one "
            "host ipc (a Unix socket), shm (a ring in shared memory) or pool (prefill workers write into the KV pool of"
            " a decode worker on a CPU, or from GPU to GPU); auto: the best that both workers support, nixl if "
            "both have RDMA"
        ),
    ] = "auto"
    kv_directory: Annotated[
        DirectoryPath,
        Meta(
            description="directory for the Unix sockets of shm and ipc; containers of one host share one, so that KV "
            "passes in memory between them; default: the system's directory for temporary files"
        ),
    ] = ""
    kv_security: Annotated[
        Security,
        Meta(
            description="encryption of KV over tcp: sealed (AES-256-GCM), or none if both workers have this setting; "
            "on one host the system's permissions protect KV"
        ),
    ] = "sealed"
    kv_codec: Annotated[
        Codec,
        Meta(
            description="compression of KV between workers: none, or fp8 or int8 with a scale per block and head "
            "(lossy, half the bytes of bf16)"
        ),
    ] = "none"
    link_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="TCP connections for KV from a prefill to a decode worker; several help on long or lossy "
            "networks, which one connection does not fill",
        ),
    ] = 1


class TransferConfig(TransferOptions, frozen=True, kw_only=True):
    """Settings of KV handoffs, with all limits and deadlines."""

    kv_codec_below: Annotated[
        float,
        Meta(
            extra={"metavar": "GB/S"},
            ge=0,
            description="use the codec only on links slower than this many GB/s; 0: on all links",
        ),
    ] = 0.0
    grants_waiting: Annotated[
        Positive,
        Meta(
            description="maximum number of handoffs that wait for KV blocks on a decode worker; further "
            "handoffs ask again"
        ),
    ] = 1024
    malformed_rate: Annotated[
        Positive, Meta(description="malformed frames per second above which a peer is cut off")
    ] = 64
    cut_off: Annotated[Seconds, Meta(description="seconds for which a cut-off peer is ignored")] = 30.0
    window: Annotated[Bytes, Meta(description="KV bytes that may be in flight on one link")] = 32 << 20
    frame: Annotated[
        int,
        Meta(
            ge=0, le=16 << 20, extra={"unit": "bytes"}, description="largest KV payload; over ZeroMQ 1 MiB is fastest"
        ),
    ] = 1 << 20
    repeat_ms: Annotated[
        float, Meta(extra={"metavar": "MS"}, gt=0, description="milliseconds until an unanswered message is repeated")
    ] = 200.0
    grant_deadline: Annotated[Seconds, Meta(description="seconds to wait for KV blocks on a decode worker")] = 30.0
    verify_deadline: Annotated[
        Seconds, Meta(description="seconds without a payload after which a committed handoff is given up")
    ] = 5.0
    silence: Annotated[Seconds, Meta(description="seconds after which a silent peer counts as dead")] = 5.0
    remember: Annotated[
        Seconds, Meta(description="seconds for which ended handoffs and cancellations are remembered")
    ] = 600.0
    waiting_share: Annotated[
        float,
        Meta(
            extra={"metavar": "SHARE"},
            gt=0,
            le=1,
            description="share of the prefill pool that may wait for one decode worker",
        ),
    ] = 0.5
