"""Settings of an engine: the model, its memory, and how steps are planned and computed."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from contracts.kinds import (
    Acceptance,
    Activations,
    AllowLoRALoading,
    BlockSize,
    Bytes,
    Count,
    CPUBackend,
    CUDABackend,
    KVDtype,
    LogprobsMode,
    LoRARoot,
    ModelImpl,
    Positive,
    Quantization,
    Speculation,
)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How a worker computes a model, and how much memory its KV blocks may take."""

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
    speculative_answers: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="tokens of each tenant's earlier answers that ngram guesses may come from, too; 0: none",
        ),
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
        return bool(self.lora) or self.allow_lora_loading


class EngineConfig(EngineOptions, frozen=True, kw_only=True):
    """What a worker's engine loads, where it runs, and how much it computes at once."""

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
