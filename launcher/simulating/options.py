"""Options of `baton simulate`, in the words of `baton bench` and `baton up`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from contracts.errors import ConfigError
from contracts.kinds import (
    Count,
    FilePath,
    Milliseconds,
    ModelConfigSource,
    Name,
    Positive,
    Seconds,
)
from infra.cli import spell
from launcher.autoscale.policy import ScalingChange, ScalingInput, ScalingPolicy
from launcher.autoscale.rules import parse_rules
from launcher.bench.load_options import LoadOptions
from launcher.options import ScalingBounds
from launcher.simulating.features import FeatureOptions
from pricing.roofline.gpu_rates import GPU_RATES
from pricing.scaling.standing import Standing
from simulation.deployment import BLOCK_TOKENS
from simulation.scaling import SimulatedScaling
from simulation.simulation import SimulatedDeath

MAX_SIMULATED_WORKERS = 1024


class SimulateConfig(LoadOptions, frozen=True, kw_only=True):
    """Simulates a deployment under a load: the code that serves, in simulated time, without a model and a GPU.

    A step lasts what a roofline of the GPU's data sheet says, times --factor, or what a worker has measured (--costs).
    One gateway routes all requests; limits of keys hold as over several gateways, which count together.

    Examples:
      ./baton simulate --model Qwen/Qwen3-8B --rate 8 --prompt-tokens 2000 --output-tokens 200
      ./baton simulate --model Qwen/Qwen3-8B --prefill 2 --decode 2 --trace mooncake.jsonl
      ./baton simulate --model Qwen/Qwen3-8B --find-goodput --prompt-tokens 512 --output-tokens 64
    """

    COMMON_OPTIONS: ClassVar = (
        *("model", "gpu", "prefill", "decode", "tensor_parallel", "costs", "rate", "seconds", "trace"),
        *("prompt_tokens", "output_tokens", "slo_ttft_ms", "slo_tpot_ms", "find_goodput", "sweep", "autoscale"),
        *("speculation", "json", "html"),
    )

    model: ModelConfigSource = ""
    gpu: Annotated[Name, Meta(description=f"kind of GPU of each worker: {', '.join(GPU_RATES)}")] = "H100"
    factor: Annotated[
        float,
        Meta(
            extra={"metavar": "FACTOR"},
            gt=0,
            description="seconds of a step as a multiple of the roofline's",
        ),
    ] = 1.0
    prefill_gpu: Annotated[Name, Meta(description="kind of GPU of each prefill worker; empty: that of --gpu")] = ""
    costs: Annotated[
        FilePath,
        Meta(description="file of bench --calibrate: workers' measured step costs, in place of GPUs' rooflines"),
    ] = ""
    kv_tokens: Annotated[
        Count, Meta(description="tokens of KV that a worker holds; 0: as many as fit into the GPU beside the weights")
    ] = 0
    block_tokens: Annotated[
        Positive,
        Meta(description="tokens of a KV block; 512, as in Mooncake's trace, is coarser, and many times as fast"),
    ] = BLOCK_TOKENS
    step_tokens: Annotated[Count, Meta(description="token budget of a step; 0: that of --costs, or 8192")] = 0
    step_ms: Annotated[
        Milliseconds,
        Meta(
            ge=0,
            description="ms that a step with decodes should take, which bounds its prompts; 0: of --costs, or 50",
        ),
    ] = 0.0
    prefill: Annotated[
        Count, Meta(le=MAX_SIMULATED_WORKERS, description="prefill workers; 0: decode workers answer alone")
    ] = 1
    decode: Annotated[Positive, Meta(le=MAX_SIMULATED_WORKERS, description="decode workers")] = 1
    features: FeatureOptions = FeatureOptions()
    link_gb_per_s: Annotated[
        float, Meta(extra={"metavar": "GB/S"}, gt=0, description="GB/s of KV between two workers")
    ] = 10.0
    link_round_trip_ms: Annotated[
        Milliseconds, Meta(ge=0, description="milliseconds of a round trip between workers")
    ] = 0.1
    steps_at_once: Annotated[
        Positive,
        Meta(description="decode steps of an unchanged batch that are one event, at most; 1: exact, and slower"),
    ] = 16
    autoscale: ScalingBounds = ""  # the numbers of workers begin at --prefill and --decode
    start_seconds: Annotated[Seconds, Meta(description="seconds that an added worker takes to start")] = 60.0
    dies: Annotated[
        str,
        Meta(
            extra={"metavar": "WORKER@S"},
            description="a worker and the second at which it dies, such as p1@30 or d2@12.5; empty: none",
        ),
    ] = ""

    def deaths(self) -> list[SimulatedDeath]:
        """Raises `ConfigError` for a worker that is not simulated."""
        if not self.dies:
            return []
        worker, _, at = self.dies.partition("@")
        known = {f"p{at}" for at in range(1, self.prefill + 1)} | {f"d{at}" for at in range(1, self.decode + 1)}
        try:
            at_s = float(at)
        except ValueError:
            at_s = -1.0
        if worker not in known or not 0 <= at_s < float("inf"):
            raise ConfigError("--dies", self.dies, f"expected one of {', '.join(sorted(known)[:8])}, @ and a second")
        return [SimulatedDeath(worker, at_s)]

    def scaling(self) -> SimulatedScaling | None:
        """Returns a new autoscaler without a history; None: the numbers of workers stay. Raises `ConfigError`."""
        if not self.autoscale:
            return None
        rules = parse_rules(self.autoscale, self.slo())
        if not self.prefill and "prefill" in rules.bounds:
            raise ConfigError("--autoscale", self.autoscale, "has prefill workers, and --prefill is 0")
        policy = ScalingPolicy(rules, 0.0)

        def look(standing: Standing, wanted: Mapping[str, int], now: float) -> ScalingChange | None:
            return policy.look(ScalingInput(standing, 0.0, wanted), now)

        return SimulatedScaling(look, self.start_seconds)

    def check(self) -> None:
        """Raises `ConfigError` for options that make no load or that exclude each other."""
        self.check_load()
        self.deaths()
        self.scaling()
        self.features.check(with_costs=bool(self.costs), prefill=self.prefill)
        given = {each.option: each.text for each in spell(self) if not each.usual}
        for option in ("--model", "--gpu", "--factor"):
            if self.costs and option in given:
                raise ConfigError(option, given[option], "cannot be used with --costs, whose steps were measured")
        if not (self.model or self.costs):
            raise ConfigError("--model", "", "say it, or --costs")
        if not (self.trace or self.prompt_tokens or self.sharegpt or self.sweep_prompts):
            raise ConfigError("--prompt-tokens", "", "a simulated prompt has a length: say it, or name a --trace")
        for option, gpu in (("--gpu", self.gpu), ("--prefill-gpu", self.prefill_gpu or self.gpu)):
            if gpu not in GPU_RATES:
                raise ConfigError(option, gpu, f"is none of {', '.join(GPU_RATES)}")
        if self.prefill_gpu and (self.costs or not self.prefill):
            other = ("--costs", self.costs) if self.costs else ("--prefill", 0)
            raise ConfigError("--prefill-gpu", self.prefill_gpu, f"cannot be used with {other[0]} {other[1]}")
