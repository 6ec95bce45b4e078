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
    DirectoryPath,
    KVDtype,
    LogprobsMode,
    LoRARoot,
    ModelImpl,
    ModelSource,
    PoolingOption,
    Positive,
    Quantization,
    Speculation,
)

RANK_COUNTS = (1, 2, 4, 8)
"""Numbers of ranks among which a model can be divided."""


class RankOptions(Struct, frozen=True, kw_only=True):
    """Ranks of a worker, real or simulated."""

    tensor_parallel: Annotated[
        int,
        Meta(
            ge=0,
            le=8,
            description="processes among which a worker divides the model, on GPUs each with its own: 1, 2, 4 or 8; "
            "0: as many as hold the weights and one request of full length on GPUs, and 1 on a CPU",
        ),
    ] = 0
    prefill_tp: Annotated[
        int, Meta(ge=0, le=8, description="--tensor-parallel of prefill workers, if it is another; 0: the same")
    ] = 0
    decode_tp: Annotated[
        int, Meta(ge=0, le=8, description="--tensor-parallel of decode workers, if it is another; 0: the same")
    ] = 0

    def asked_width(self, role: Literal["prefill", "decode"]) -> int:
        """Returns the ranks that a worker of this role should have; 0: as many as hold the weights and a request."""
        return (self.prefill_tp if role == "prefill" else self.decode_tp) or self.tensor_parallel

    def widths_by_option(self) -> dict[str, int]:
        """Returns the width that each option gives, by the option's name; 0: none."""
        return {
            "--tensor-parallel": self.tensor_parallel,
            "--prefill-tp": self.prefill_tp,
            "--decode-tp": self.decode_tp,
        }


class MemoryOptions(RankOptions, frozen=True, kw_only=True):
    """Memory of a worker, real or simulated."""

    quantization: Annotated[
        Quantization,
        Meta(
            description="quantization of linear layers' weights: none (the checkpoint's format), int8 or fp8 (8 bits "
            "per weight), int4 (4.5 bits, the head in int8). Weights that are quantized in the checkpoint "
            "stay unchanged"
        ),
    ] = "none"
    kv_dtype: Annotated[
        KVDtype,
        Meta(
            description="number format of the KV cache: auto (as --dtype), or fp8 or int8 with a scale per token and "
            "vector (lossy, holds about twice as many tokens as bf16)"
        ),
    ] = "auto"
    host_kv_memory: Annotated[
        Bytes, Meta(description="host memory for a worker's evicted or preempted KV blocks, such as 2GiB; 0: none")
    ] = 0
    max_loras: Annotated[int, Meta(ge=1, le=1024, description="maximum number of adapters loaded at once")] = 8


class DraftOptions(MemoryOptions, frozen=True, kw_only=True):
    """Draft tokens."""

    speculation: Annotated[
        Speculation,
        Meta(
            description="source of draft tokens, several of which a decode step verifies at once without changing the "
            "output's distribution: none, ngram (repetitions of the text), draft, medusa, eagle, or auto "
            "(the configured model or heads, else ngram)"
        ),
    ] = "none"
    speculative_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="maximum number of draft tokens per sequence and step; 0: a default for the kind of "
            "--speculation",
        ),
    ] = 0
    draft_model: Annotated[
        ModelSource,
        Meta(description="smaller model with the same vocabulary that makes draft tokens: a directory or a hub id"),
    ] = ""


class WorkerDraftOptions(DraftOptions, frozen=True, kw_only=True):
    """Draft tokens."""

    speculative_answers: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="tokens of each tenant's earlier answers that ngram drafts may use, too; 0: none",
        ),
    ] = 0
    acceptance: Annotated[
        Acceptance,
        Meta(
            description="acceptance of Medusa heads' draft tokens: exact (keeps the model's distribution), or typical "
            "(accepts likely tokens, which changes the distribution)"
        ),
    ] = "exact"
    medusa: Annotated[
        DirectoryPath, Meta(description="directory of the model's Medusa heads, which make draft tokens")
    ] = ""
    eagle: Annotated[
        DirectoryPath, Meta(description="directory of the model's EAGLE head, which makes draft tokens")
    ] = ""


class EngineOptions(WorkerDraftOptions, frozen=True, kw_only=True):
    """Computation of the model, and memory of its KV blocks."""

    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Meta(
            description="number format of weights and KV: fp32, bf16, fp16, or auto (bf16 if the device computes it "
            "fast)"
        ),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="code that computes the model: native (Baton's), transformers (with Baton's KV and attention),"
            " or auto (native for supported families)"
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool,
        Meta(
            description="run Python code from the model's files if transformers does not know the model; otherwise "
            "such models are refused"
        ),
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
    deterministic: Annotated[
        bool,
        Meta(
            description="ranks on GPUs add up in fp32 in a fixed order, whatever a step has besides, not by NCCL's own "
            "sums; ranks on a CPU always do"
        ),
    ] = False
    activations: Annotated[
        Activations,
        Meta(
            description="on a GPU, number format of activations that are multiplied with 8-bit weights, for more than "
            "128 tokens at once: 16bit (unchanged), 8bit (int8 or fp8 like the weights, with a scale per "
            "token: faster, lossy), auto (8bit if the checkpoint was made for it)"
        ),
    ] = "auto"
    logprobs_mode: Annotated[
        LogprobsMode,
        Meta(
            description="log-probabilities of output tokens: raw_logprobs (before) or processed_logprobs (after "
            "penalties, biases, temperature and filters)"
        ),
    ] = "raw_logprobs"
    pooling: Annotated[
        PoolingOption,
        Meta(
            description="what makes a text's vector, for models of embeddings: last (the last token's state), mean, cls"
            " (the first token's state), none (the model answers chats), or auto (as the model's files say)"
        ),
    ] = "auto"
    score_tokens: Annotated[
        str,
        Meta(
            extra={"metavar": "NO,YES"},
            description="two tokens whose logits score a query and a document, for rerankers that answer with a word, "
            "such as no,yes; empty: as the model's files say",
        ),
    ] = ""
    matryoshka: Annotated[
        bool,
        Meta(description="requests may ask for a vector's first values alone (dimensions), as the model was trained"),
    ] = False
    max_model_len: Annotated[int, Meta(ge=0, description="longest prompt + answer in tokens; 0: the model's own")] = 0
    kv_memory: Annotated[
        Bytes, Meta(description="memory for a worker's KV blocks, such as 512MiB; 0: chosen by the device")
    ] = 0
    host_kv_directory: Annotated[
        DirectoryPath,
        Meta(description="directory for the blocks of --host-kv-memory, in an unnamed file; empty: in memory"),
    ] = ""
    block_size: Annotated[BlockSize, Meta(description="tokens per KV block: 8, 16, 32 or 64")] = 16
    max_batch_tokens: Annotated[
        Count, Meta(description="tokens per step, prompt chunks included; 0: 8192 on a GPU, 512 on a CPU")
    ] = 0
    step_ms: Annotated[
        float,
        Meta(
            extra={"metavar": "MS"},
            gt=0,
            description="target duration of a step with decodes, in milliseconds, which limits its prompt chunks; "
            "below the wanted time per token",
        ),
    ] = 50.0
    lora: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=DIR"},
            description="adapter served beside the model: name=DIR, DIR in PEFT's format; may be repeated",
        ),
    ] = ()
    max_lora_rank: Annotated[int, Meta(ge=1, le=1024, description="largest rank of an adapter")] = 64
    lora_root: LoRARoot = ""
    allow_lora_loading: AllowLoRALoading = False

    @property
    def adapts(self) -> bool:
        return bool(self.lora) or self.allow_lora_loading

    def width(self, role: Literal["prefill", "decode"]) -> int:
        """Returns the number of ranks of a worker of this role."""
        return self.asked_width(role) or 1


class EngineConfig(EngineOptions, frozen=True, kw_only=True):
    """What a worker's engine loads, where it runs, and how much it computes at once."""

    model: Annotated[ModelSource, Meta(description="directory in Hugging Face format, or a hub id")]
    device: Annotated[
        str,
        Meta(extra={"metavar": "DEVICE"}, pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N"),
    ] = "auto"
    decode_graphs: Annotated[
        Literal["on", "off"],
        Meta(description="on a GPU: record decode steps and small mixed steps as CUDA graphs, and replay them"),
    ] = "on"
    gpu_memory_utilization: Annotated[
        float,
        Meta(extra={"metavar": "SHARE"}, gt=0, le=1, description="share of the GPU's memory that this worker may use"),
    ] = 0.9
    max_sequences: Annotated[Positive, Meta(description="maximum number of running sequences")] = 256
