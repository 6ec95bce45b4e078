"""What `baton up` and `baton chat` can be told; `core.cli` makes the command-line options from these structs."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from core.config import (
    BlockSize,
    Bytes,
    Codec,
    CPUBackend,
    CUDABackend,
    LogLevel,
    Positive,
    Quantization,
    Security,
)

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = str(ROOT / "demo_model" / "weights")
DEMO_NAME = "baton-demo"  # what clients call it; the directory's name says nothing

Port = Annotated[int, Meta(ge=0, le=65535)]


class UpConfig(Struct, frozen=True, kw_only=True):
    """Starts everything on this host: Redis, prefill and decode workers, the gateway and the dashboard.

    Example: ./baton up --model Qwen/Qwen3-0.6B --prefill 2 --decode 1 --port 18080
    """

    model: Annotated[str, Meta(description="directory in Hugging Face format, or a hub id such as Qwen/Qwen3-0.6B")] = (
        DEMO_MODEL
    )
    prefill: Annotated[Positive, Meta(description="number of prefill workers")] = 1
    decode: Annotated[Positive, Meta(description="number of decode workers")] = 1
    device: Annotated[
        Literal["cpu", "cuda", "auto"], Meta(description="cpu, cuda or auto; cuda spreads the workers over the GPUs")
    ] = "auto"
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "auto"], Meta(description="of weights and KV: fp32, bf16, fp16 or auto")
    ] = "auto"
    cpu_backend: Annotated[
        CPUBackend, Meta(description="operators on a CPU: native (compiled at the first start), torch, or auto")
    ] = "auto"
    cuda_backend: Annotated[
        CUDABackend, Meta(description="operators on a GPU: triton's kernels, PyTorch's, or auto")
    ] = "auto"
    quantization: Annotated[
        Quantization, Meta(description="of the weights of linear layers: none, or int8, by native operators on a CPU")
    ] = "none"
    host: Annotated[str, Meta(description="address that the endpoint and the dashboard listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port of the endpoint; 0: chosen by the system")] = 8000
    dashboard_port: Annotated[Port, Meta(description="port of the dashboard; 0: no dashboard")] = 8501
    redis: Annotated[
        str, Meta(description="URL of a Redis or Valkey server to use; empty: one is started for this instance")
    ] = ""
    max_model_len: Annotated[int, Meta(ge=0, description="longest prompt + answer in tokens; 0: the model's own")] = 0
    kv_memory: Annotated[
        Bytes, Meta(description="memory for KV blocks of each worker, such as 512MiB; 0: chosen by the device")
    ] = 0
    host_kv_memory: Annotated[
        Bytes, Meta(description="memory of each worker for KV blocks that left the pool, such as 2GiB; 0: none")
    ] = 0
    host_kv_directory: Annotated[
        str, Meta(description="directory to keep those blocks in, in files without a name; empty: in memory")
    ] = ""
    block_size: Annotated[BlockSize, Meta(description="tokens per KV block: 8, 16, 32 or 64")] = 16
    step_ms: Annotated[
        float, Meta(gt=0, description="milliseconds that a decode worker's step may take: below the SLO's TPOT")
    ] = 50.0
    kv_transport: Annotated[
        Literal["auto", "shm", "ipc", "tcp"],
        Meta(description="how KV passes between workers: shared memory, a Unix socket, tcp; auto: the best that works"),
    ] = "auto"
    kv_security: Annotated[Security, Meta(description="of KV over tcp: sealed, or none")] = "sealed"
    kv_codec: Annotated[
        Codec, Meta(description="of KV on its way: none, or fp8 or int8, which halve bf16's bytes and are lossy")
    ] = "none"
    log_level: Annotated[LogLevel, Meta(description="debug, info, warning or error")] = "info"
    secret_file: Annotated[
        str, Meta(description="file with the secret that seals prompts and KV; empty: a new one for this instance")
    ] = ""


class ChatConfig(Struct, frozen=True, kw_only=True):
    """Talks to a running instance in the terminal; without one it offers to start one.

    Example: ./baton chat --url http://127.0.0.1:18080
    """

    url: Annotated[str, Meta(description="endpoint, such as http://127.0.0.1:8000; empty: the running instance")] = ""
    max_tokens: Annotated[Positive, Meta(description="longest answer in tokens")] = 512
    temperature: Annotated[float, Meta(ge=0, le=2, description="0: always the likeliest token")] = 0.7
