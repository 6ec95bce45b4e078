"""Types of settings, with their limits and help texts.

A service's settings are frozen structs of structs, never mutated; errors name the option. A field's annotation has its
help and limits, and `infra.cli` makes a command-line option of each field, so an option is defined in one place. `baton
up` takes the structs `…Options` whole, and passes them on to its workers.
"""

from typing import Annotated, Literal

from msgspec import Meta

Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
Seconds = Annotated[float, Meta(gt=0, extra={"metavar": "SECONDS"})]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535, extra={"metavar": "PORT"})]
FilePath = Annotated[str, Meta(extra={"metavar": "FILE"})]
DirectoryPath = Annotated[str, Meta(extra={"metavar": "DIR"})]
ModelSource = Annotated[str, Meta(extra={"metavar": "MODEL"})]  # directory, GGUF file, or hub id
ModelConfigSource = Annotated[
    ModelSource, Meta(description="directory of a model with config.json, or its id on the Hugging Face hub")
]
Name = Annotated[str, Meta(extra={"metavar": "NAME"})]
Names = Annotated[str, Meta(extra={"metavar": "NAMES"})]
LengthsText = Annotated[str, Meta(extra={"metavar": "LENGTHS"})]  # of `workloads.lengths`
Rate = Annotated[float, Meta(extra={"metavar": "RATE"})]
Milliseconds = Annotated[float, Meta(extra={"metavar": "MS"})]
URLText = Annotated[str, Meta(extra={"metavar": "URL"})]
Address = Annotated[str, Meta(extra={"metavar": "ADDRESS"})]
BlockSize = Literal[8, 16, 32, 64]
CPUBackend = Literal["auto", "native", "torch", "triton"]
CUDABackend = Literal["auto", "triton", "torch"]
ModelImpl = Literal["auto", "native", "transformers"]
Quantization = Literal["none", "int8", "int4", "fp8"]
Activations = Literal["auto", "8bit", "16bit"]
PoolingOption = Literal["auto", "none", "last", "mean", "cls"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
Codec = Literal["none", "fp8", "int8"]
KVDtype = Literal["auto", "fp8", "int8"]
HandoffRule = Annotated[
    Literal["auto", "always"],
    Meta(
        description="auto: a decode worker computes a prompt itself if that is faster; always: a prefill worker "
        "computes every prompt"
    ),
]
Speculation = Literal["none", "ngram", "draft", "medusa", "eagle", "auto"]
Acceptance = Literal["exact", "typical"]
Transport = Literal["pool", "shm", "ipc", "nixl", "tcp"]
Security = Literal["sealed", "none"]
# Types used by several structs.
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(description="lowest severity of logged messages: debug, info, warning or error"),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Meta(description="form of log lines: text, or json (an object in each line); both with time zone and service"),
]
AccessLog = Annotated[
    bool, Meta(description="log a line for each request that has ended: id, tenant, tokens, times and end, never text")
]
TraceEndpoint = Annotated[
    str,
    Meta(
        extra={"metavar": "URL"},
        description="URL of an OpenTelemetry collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; "
        "empty: no traces",
    ),
]
TraceSample = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        extra={"metavar": "SHARE"},
        description="share of the requests that are traced; also traced are requests whose traceparent header is "
        "sampled; 0: none",
    ),
]
SpelledTokens = Annotated[
    Literal["text", "tokens"],
    Meta(
        description="how special tokens inside a chat's messages are read: text, so that messages cannot forge turns, "
        "or tokens, as in transformers"
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
        "deepseek_v32",
        "deepseek_v4",
        "harmony",
        "glm45",
        "kimi_k2",
        "granite",
        "gemma4",
        "seed_oss",
        "minimax",
        "minimax_m2",
        "minicpm5",
        "command_r",
        "command_r7b",
        "lfm2",
        "nemotron",
        "apertus",
        "apriel",
        "gigachat3",
        "gigachat31",
        "solar_open",
        "hunyuan",
        "functionary_v31",
        "functionary_v32",
    ],
    Meta(
        description="format in which the model calls tools: auto (by its chat template), none (it calls none), or "
        "hermes, qwen3_coder, llama3_json, pythonic, mistral, mistral_named, deepseek_v3, deepseek_v31, deepseek_v32, "
        "deepseek_v4, harmony, glm45, kimi_k2, granite, gemma4, seed_oss, minimax, minimax_m2, minicpm5, "
        "command_r, command_r7b, lfm2, nemotron, apertus, apriel, gigachat3, gigachat31, solar_open, hunyuan, "
        "functionary_v31, functionary_v32"
    ),
]
ReasoningParser = Annotated[
    Literal["auto", "none", "think", "mistral", "harmony", "seed_oss", "cohere", "gemma4"],
    Meta(
        description="format in which the model thinks before it answers: auto (by its chat template), none (thoughts "
        "are part of the answer), or think (<think>), mistral ([THINK]), harmony, seed_oss (<seed:think>), cohere "
        "(<|START_THINKING|>), gemma4 (<|channel>thought)"
    ),
]
UnknownFieldsRule = Annotated[
    Literal["refuse", "ignore"],
    Meta(
        description="unknown fields of requests: refuse (400, by name), or ignore (they are named in the "
        "header x-baton-ignored-fields, and once in the log)"
    ),
]
StatusPath = Annotated[FilePath, Meta(description="file that shows the start's progress as one line of JSON")]
StoreTTL = Annotated[
    float,
    Meta(
        extra={"metavar": "SECONDS"},
        ge=0,
        description="seconds for which /v1/responses stores a response; 0: responses are not stored",
    ),
]
StoreBytes = Annotated[
    int,
    Meta(
        ge=0,
        extra={"unit": "bytes"},
        description="limit of the sealed responses in Redis over all tenants; one tenant may use a quarter of it; 0: "
        "none are stored",
    ),
]
TTFTLimit = Annotated[
    float,
    Meta(extra={"metavar": "MS"}, gt=0, description="highest time to first token of a good request, in milliseconds"),
]
TPOTLimit = Annotated[
    float,
    Meta(
        extra={"metavar": "MS"},
        gt=0,
        description="highest average time per further token of a good request, in milliseconds",
    ),
]
APIKeys = Annotated[
    tuple[str, ...],
    Meta(
        extra={"metavar": "FILE"},
        description="file of API keys, made by `baton key`; may be repeated. With a file, every path but /health, "
        "/ready and /ping needs a key; without any, no path does",
    ),
]
Slo = Annotated[
    str,
    Meta(
        extra={"metavar": "OBJECTIVE"},
        description="default latency objective of requests, such as ttft=2s,tpot=100ms, unless their key or headers "
        "set another; empty: none",
    ),
]
TLSCert = Annotated[
    FilePath,
    Meta(description="file with the certificate (PEM, followed by its chain) for HTTPS, TLS 1.2 or newer; empty: HTTP"),
]
TLSKey = Annotated[FilePath, Meta(description="file with the certificate's key (PEM, without a password)")]
RedisURL = Annotated[
    URLText,
    Meta(
        description="URL of the Redis or Valkey server: redis://, rediss:// (TLS), unix://, redis+sentinel:// or "
        "redis+cluster://"
    ),
]
ServedNames = Annotated[
    str,
    Meta(
        extra={"metavar": "NAME,…"},
        description="names by which clients call the model, divided by commas: its own, and aliases, such as "
        "qwen,gpt-4o; empty: the directory's name or the hub id",
    ),
]
LoRARoot = Annotated[
    DirectoryPath, Meta(description="directory with the adapters that may be loaded at run time; empty: none")
]
AllowLoRALoading = Annotated[
    bool,
    Meta(description="let clients load and unload adapters below --lora-root at run time"),
]
