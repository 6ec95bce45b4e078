"""Holds the settings: one frozen struct per service, composed, never mutated. A bad value is refused by name.

Every field has its help and its limits in its annotation; `core.cli` turns a struct into command-line options, so an
option, its default, its limits and its help stand in one place: here. `baton up` takes the structs `…Options` whole and
passes them on to its workers.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
Seconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
BlockSize = Literal[8, 16, 32, 64]
CPUBackend = Literal["auto", "native", "torch", "triton"]
CUDABackend = Literal["auto", "triton", "torch"]
ModelImpl = Literal["auto", "native", "transformers"]
Quantization = Literal["none", "int8", "int4", "fp8"]
Activations = Literal["auto", "8bit", "16bit"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
Codec = Literal["none", "fp8", "int8"]
KVDtype = Literal["auto", "fp8", "int8"]
HandoffRule = Annotated[
    Literal["auto", "always"],
    Meta(description="auto: a decode worker computes a prompt itself where that is faster; always: it never does"),
]
Speculation = Literal["none", "ngram", "draft", "medusa", "eagle", "auto"]
Acceptance = Literal["exact", "typical"]
Transport = Literal["shm", "ipc", "tcp"]
Security = Literal["sealed", "none"]

# Fields that several structs have.
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(description="least severe messages that are logged: debug, info, warning or error"),
]
SpelledTokens = Annotated[
    Literal["text", "tokens"],
    Meta(
        description="special tokens that a chat's messages spell out: text, so that no message can write turns, or "
        "tokens, as transformers takes them"
    ),
]
ToolParser = Annotated[
    Literal[
        "auto",
        "none",
        "hermes",
        "qwen3_coder",
        "llama3_json",
        "pythonic",
        "mistral",
        "mistral_named",
        "deepseek_v3",
        "deepseek_v31",
        "harmony",
        "glm45",
    ],
    Meta(
        description="format in which the model calls tools: auto (by its chat template), none (it calls none), or "
        "hermes, qwen3_coder, llama3_json, pythonic, mistral, mistral_named, deepseek_v3, deepseek_v31, harmony, glm45"
    ),
]
ReasoningParser = Annotated[
    Literal["auto", "none", "think", "mistral", "harmony"],
    Meta(
        description="format in which the model thinks before it answers: auto (by its chat template), none (thoughts "
        "are part of the answer), or think (<think>), mistral ([THINK]), harmony"
    ),
]
StatusPath = Annotated[str, Meta(description="file that shows the start's progress as one line of JSON")]
StoreTTL = Annotated[
    float, Meta(ge=0, description="seconds for which /v1/responses stores a response for its client; 0: not at all")
]
StoreBytes = Annotated[
    int,
    Meta(
        ge=0,
        extra={"unit": "bytes"},
        description="responses that are stored in Redis, sealed, of all tenants; one may have a quarter; 0: none",
    ),
]
TTFTLimit = Annotated[float, Meta(gt=0, description="milliseconds in which a good request has its first token")]
TPOTLimit = Annotated[float, Meta(gt=0, description="milliseconds that a good request's other tokens take on average")]


APIKeys = Annotated[
    tuple[str, ...],
    Meta(
        description="file of API keys, made by `baton key`; may be repeated. Without one everybody may ask, with one "
        "every path but /health, /ready and /ping needs a key"
    ),
]
Slo = Annotated[
    str,
    Meta(
        description="objective of requests for which neither their key nor their headers say another, such as "
        "ttft=2s,tpot=100ms; empty: none"
    ),
]


TLSCert = Annotated[
    str,
    Meta(description="file with the certificate (PEM, its chain behind it) for HTTPS, TLS 1.2 or newer; empty: HTTP"),
]
TLSKey = Annotated[str, Meta(description="file with the certificate's key (PEM, without a password)")]
RedisURL = Annotated[
    str,
    Meta(
        description="URL of the Redis or Valkey server: redis://, rediss:// (TLS), unix://, redis+sentinel:// or "
        "redis+cluster://"
    ),
]


class StoreConfig(Struct, frozen=True, kw_only=True):
    """Says where queue state lives, and which secret seals it."""

    redis: RedisURL = "redis://127.0.0.1:6379"
    secret_file: Annotated[
        str, Meta(description="file with the deployment's secret, the same for every service; empty: this user's own")
    ] = ""


LoRARoot = Annotated[str, Meta(description="directory below which adapters may be loaded at run time; empty: none may")]
AllowLoRALoading = Annotated[
    bool,
    Meta(description="whether clients may load and unload adapters at run time, from below --lora-root"),
]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """Says how a worker computes a model, and how much memory its KV blocks may take."""

    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Meta(description="number format of weights and KV: fp32, bf16, fp16, or auto: bf16 where it is fast"),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="whose code computes the model: native (ours), transformers (its own, over our KV and "
            "attention), or auto: ours for the families that we have"
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool, Meta(description="run code that comes with a model, where transformers knows none; without it: refuse")
    ] = False
    cpu_backend: Annotated[
        CPUBackend,
        Meta(
            description="operators on a CPU: native (compiled at the first start), torch, or auto; triton: its "
            "interpreter, to check the GPU's kernels"
        ),
    ] = "auto"
    cuda_backend: Annotated[
        CUDABackend, Meta(description="operators on a GPU: triton's kernels, PyTorch's, or auto")
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="weights of linear layers: none: as the checkpoint has them; int8, fp8: a byte each; int4: 4.5 "
            "bits each, the head in int8. What is quantized in a checkpoint stays as it is"
        ),
    ] = "none"
    activations: Annotated[
        Activations,
        Meta(
            description="on a GPU, what more than 128 tokens at once become before they meet weights of 8 bits: 16bit: "
            "what they are; 8bit: int8 or fp8 as the weights, with a scale for each token: faster, and lossy; auto: "
            "8bit where the checkpoint was made for it"
        ),
    ] = "auto"
    kv_dtype: Annotated[
        KVDtype,
        Meta(
            description="numbers of the KV cache: auto (those of --dtype), or fp8 or int8 with a scale for each token "
            "and vector: room for about twice bf16's texts, and lossy"
        ),
    ] = "auto"
    logprobs_mode: Annotated[
        LogprobsMode,
        Meta(
            description="log-probabilities of output tokens: raw_logprobs, the model's own, or processed_logprobs, "
            "after penalties, biases, temperature and filters"
        ),
    ] = "raw_logprobs"
    max_model_len: Annotated[int, Meta(ge=0, description="longest prompt + answer in tokens; 0: the model's own")] = 0
    kv_memory: Annotated[
        Bytes, Meta(description="memory for a worker's KV blocks, such as 512MiB; 0: chosen by the device")
    ] = 0
    host_kv_memory: Annotated[
        Bytes, Meta(description="memory for a worker's KV blocks that were evicted or preempted, such as 2GiB; 0: none")
    ] = 0
    host_kv_directory: Annotated[
        str, Meta(description="directory to keep those blocks in, in a file without a name; empty: in memory")
    ] = ""
    block_size: Annotated[BlockSize, Meta(description="tokens per KV block: 8, 16, 32 or 64")] = 16
    max_batch_tokens: Annotated[
        Count, Meta(description="tokens per step, prompt chunks included; 0: 8192 on a GPU, 512 on a CPU")
    ] = 0
    step_ms: Annotated[
        float,
        Meta(gt=0, description="milliseconds after which prompts' chunks beside decodes end a step; below the TPOT"),
    ] = 50.0
    speculation: Annotated[
        Speculation,
        Meta(
            description="who proposes tokens that decode steps check, several at once; what is sampled stays the "
            "same: none, ngram (the text itself), draft, medusa, eagle, or auto: who is given, else ngram"
        ),
    ] = "none"
    speculative_tokens: Annotated[
        int, Meta(ge=0, le=16, description="most tokens proposed to a sequence in a step; 0: as suits who proposes")
    ] = 0
    acceptance: Annotated[
        Acceptance,
        Meta(
            description="which guesses of Medusa heads count: exact, those that are drawn; or typical, those that are "
            "likely enough, by which answers are no longer samples of the model's own distribution"
        ),
    ] = "exact"
    draft_model: Annotated[
        str, Meta(description="smaller model with the same vocabulary that proposes: a directory or a hub id")
    ] = ""
    medusa: Annotated[str, Meta(description="directory of Medusa heads of the model, which propose")] = ""
    eagle: Annotated[str, Meta(description="directory of an EAGLE head of the model, which proposes")] = ""
    lora: Annotated[
        tuple[str, ...],
        Meta(description="adapter served beside the model: name=DIR, DIR in PEFT's format; may be repeated"),
    ] = ()
    max_loras: Annotated[int, Meta(ge=1, le=1024, description="adapters that are loaded at once")] = 8
    max_lora_rank: Annotated[int, Meta(ge=1, le=1024, description="largest rank of an adapter")] = 64
    lora_root: LoRARoot = ""
    allow_lora_loading: AllowLoRALoading = False

    @property
    def adapts(self) -> bool:
        """Tells whether there can be adapters."""
        return bool(self.lora) or self.allow_lora_loading


class EngineConfig(EngineOptions, frozen=True, kw_only=True):
    """Says what a worker's engine loads, where it runs and how much it does at once."""

    model: Annotated[str, Meta(description="directory in Hugging Face format, or a hub id")]
    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")] = "auto"
    decode_graphs: Annotated[
        Literal["on", "off"],
        Meta(description="on a GPU: whether decode steps are recorded when the worker starts, and replayed"),
    ] = "on"
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="share of the GPU's memory that this worker may use")
    ] = 0.9
    max_sequences: Annotated[Positive, Meta(description="sequences that run at once")] = 256


class TransferOptions(Struct, frozen=True, kw_only=True):
    """Says by which way and in which form KV passes between workers."""

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
    """Says how KV is handed off, with all bounds and deadlines."""

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
    silence: Annotated[Seconds, Meta(description="a peer that is silent for so many seconds is dead")] = 5.0
    remember: Annotated[Seconds, Meta(description="seconds that ended handoffs and cancels are remembered")] = 600.0
    waiting_share: Annotated[
        float, Meta(gt=0, le=1, description="share of the prefill pool that may wait for one decode worker")
    ] = 0.5


class PlaceOptions(Struct, frozen=True, kw_only=True):
    """Says where a worker runs: what it listens on, how others reach it, and what it is near to."""

    host: Annotated[
        str,
        Meta(
            description="address to listen on, IPv4 or IPv6; 0.0.0.0 or ::, all of this host's; empty: the one that is "
            "announced, or else 127.0.0.1"
        ),
    ] = ""
    announce: Annotated[
        str,
        Meta(
            max_length=253,
            description="how others reach this worker, where that is not --host: an interface (eth0), a network "
            "(10.0.0.0/8, fd00::/8) that has an address of this host, an address, or a host name with an IPv4 address",
        ),
    ] = ""
    ports: Annotated[
        str,
        Meta(
            description="ports to listen on, such as 20000-20100; a prefill worker takes one of them, a decode worker "
            "three; empty: chosen by the system"
        ),
    ] = ""
    node_label: Annotated[
        str,
        Meta(
            max_length=63,
            description="what this worker is near to, such as a rack or a zone: KV passes rather between workers of "
            "one label; empty: the environment's NODE_NAME",
        ),
    ] = ""


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """Runs a prefill or a decode worker."""

    engine: EngineConfig
    store: StoreConfig = StoreConfig()
    transfer: TransferConfig = TransferConfig()
    place: PlaceOptions = PlaceOptions()
    status_file: StatusPath = ""
    busy_page: Annotated[str, Meta(description="file shared by this host's workers to divide its cores")] = ""
    log_level: LogLevel = "info"
    inbox: Annotated[Positive, Meta(description="events that may wait between the two threads")] = 65536
    jobs_ahead: Annotated[Positive, Meta(description="jobs taken from the stream but not yet running")] = 1024
    gateway_silence: Annotated[Seconds, Meta(description="a gateway silent for so many seconds is dead")] = 5.0
    drain_seconds: Annotated[Seconds, Meta(description="seconds that running sequences get at a shutdown")] = 10.0
    hang_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="seconds, or ten of the largest steps if that is more, after which a worker whose engine hangs "
            "ends; 0: never",
        ),
    ] = 60.0


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """Serves the OpenAI API over HTTP, and sends requests to the workers."""

    model: Annotated[str, Meta(description="directory in Hugging Face format, or a hub id; its tokenizer is read")]
    store: StoreConfig = StoreConfig()
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="HTTP port; 0: chosen by the system")] = 8000
    gateways: Annotated[
        Positive, Meta(description="gateway processes on this port; this one only keeps them, if more")
    ] = 1
    share_port: Annotated[
        str,
        Meta(max_length=64, description="name of the gateways of one user that share the port; empty: it has it alone"),
    ] = ""
    model_name: Annotated[str, Meta(description="name that clients use; empty: the directory's or the id's own")] = ""
    max_model_len: Annotated[int, Meta(ge=0, description="longest prompt + answer in tokens; 0: the model's own")] = 0
    status_file: StatusPath = ""
    log_level: LogLevel = "info"
    handoff: HandoffRule = "auto"
    request_timeout: Annotated[Seconds, Meta(description="seconds that a request may take in all")] = 600.0
    drain_seconds: Annotated[Seconds, Meta(description="seconds that answers in progress get at a shutdown")] = 10.0
    max_requests: Annotated[Positive, Meta(description="answers in progress; more requests wait for their turn")] = 1024
    max_waiting: Annotated[
        Count,
        Meta(
            description="requests that wait for room, or for a moment at which they can keep their objective; more are "
            "refused with 429"
        ),
    ] = 256
    max_samples: Annotated[Positive, Meta(description="largest n: answers to one prompt")] = 16
    max_body: Annotated[Bytes, Meta(description="largest request body")] = 4 << 20
    link_prompt: Annotated[
        Positive,
        Meta(description="tokens from which on a prompt reaches its worker by the gateway's connection, not by Redis"),
    ] = 16_384
    body_memory: Annotated[
        Bytes, Meta(description="bytes of bodies that are being read, of all requests; for more there is 503")
    ] = 256 << 20
    max_connections: Annotated[
        Positive,
        Meta(description="open connections; for one more an idle one is closed, or it is refused with 503"),
    ] = 4096
    allow_origins: Annotated[
        str,
        Meta(description="origins whose pages may ask from a browser, with commas; *: all; empty: none"),
    ] = "*"
    spelled_tokens: SpelledTokens = "text"
    store_ttl: StoreTTL = 86400.0
    store_bytes: StoreBytes = 256 << 20
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    lora_root: LoRARoot = ""
    allow_lora_loading: AllowLoRALoading = False
    api_keys: APIKeys = ()
    tls_cert: TLSCert = ""
    tls_key: TLSKey = ""
    slo: Slo = ""
    slo_ttft_ms: TTFTLimit = 2000.0
    slo_tpot_ms: TPOTLimit = 100.0


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
