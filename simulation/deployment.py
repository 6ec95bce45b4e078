"""Describes a simulated deployment: workers, their devices' memory and steps, and the links between them."""

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from contracts.kv.spec import KVGroup, KVSpec
from contracts.slo import NO_OBJECTIVE, Objective
from engine.schedule.prompt_turns import SHORTER_PROMPTS_SHARE
from infra.config.gateway import GatewayConfig
from infra.config.transfer import TransferConfig
from infra.redis.records import Role
from pricing.rates import StartRates
from pricing.step_costs.steps import StepCosts, StepWork
from simulation.adapters import SimulatedAdapters
from simulation.drafts import SimulatedDrafts
from simulation.senders import KeyTraffic

KV_SLICES = 4
"""Layers of a simulated pool: a prompt's KV leaves in as many slices, not in one for each layer of the model."""
BLOCK_TOKENS = 16
MIN_BLOCKS = 2
FRONT_S = 0.0005
STEP_TARGET_S = 0.05
"""Seconds that a step with decodes should take: the default of a worker's `step_ms`."""


class SimulatedDevice(Struct, frozen=True, kw_only=True):
    """A worker's device: how long a step takes, how many KV blocks there are, and the limits of its scheduler.

    `costs` is what the worker believes before its first step; it then learns from its steps, as a real worker does.
    `pause_s`: seconds from a step to the next, which no worker measures. `host_blocks`: blocks that its host's memory
    holds beside the pool, over a link with `host_bytes_per_s`. `drafts`: draft tokens of a decode worker.
    `shorter_share`: share of a step that a long prompt leaves to shorter prompts.
    """

    name: str
    gpus: int = 1
    seconds: Callable[[StepWork], float]
    costs: StepCosts
    token_bytes: int
    blocks: int
    block_tokens: int = BLOCK_TOKENS
    step_tokens: int = 8192
    step_target_s: float = STEP_TARGET_S
    max_sequences: int = 256
    pause_s: float = 0.0
    max_model_len: int = 1 << 17
    host_blocks: int = 0
    host_bytes_per_s: float = 0.0
    drafts: SimulatedDrafts | None = None
    adapters: SimulatedAdapters = SimulatedAdapters()
    shorter_share: float = SHORTER_PROMPTS_SHARE

    def with_pool(self, tokens: int, block_tokens: int) -> "SimulatedDevice":
        """Returns the device with a pool for this many tokens, of two blocks at least."""
        return structs.replace(self, blocks=max(MIN_BLOCKS, tokens // block_tokens), block_tokens=block_tokens)

    @property
    def start_rates(self) -> StartRates:
        """Rates by which a worker weighs the host's blocks against their computation."""
        return StartRates(1 / self.costs.prompt_token if self.costs.known else 0.0, self.host_bytes_per_s)

    def seed(self) -> StepCosts:
        """Returns the costs with the bounds of the scheduler's steps, as a worker tells them."""
        bounds = {"most_tokens": self.step_tokens, "shorter": self.shorter_share, "target": self.step_target_s}
        return structs.replace(self.costs, **bounds)

    def spec(self) -> KVSpec:
        size = -(-self.token_bytes * self.block_tokens // KV_SLICES)
        return KVSpec((KVGroup("full", tuple(range(KV_SLICES)), self.block_tokens, size),), "simulated", "simulated")


class LinkFigures(Struct, frozen=True):
    """A link between two workers: bytes per second, and the seconds of a round trip."""

    bytes_per_second: float = 3e9
    round_trip_s: float = 0.0002


class SimulatedDeployment(Struct, frozen=True, kw_only=True):
    """Workers, links and settings. Without prefill workers, decode workers answer whole requests.

    All workers run on `device`; prefill workers on `prefill_device`, if it is given. `front_s`: seconds that a message
    takes between gateway and worker, and a job on its stream. `repeats`: largest number of decode steps that are one
    event, while no sequence ends and no event comes; 1: each step is an event. `keys`: the API keys of the requests;
    without keys, requests have no tenant. `objective`: the objective of requests whose key sets none. Requests use the
    adapters of `device`.
    """

    prefill: int
    decode: int
    device: SimulatedDevice
    prefill_device: SimulatedDevice | None = None
    link: LinkFigures = LinkFigures()
    transfer: TransferConfig = TransferConfig(frame=16 << 20)
    gateway: GatewayConfig = GatewayConfig(model="simulated")
    front_s: float = FRONT_S
    repeats: int = 1
    keys: Sequence[KeyTraffic] = ()
    objective: Objective = NO_OBJECTIVE

    def device_of(self, role: Role) -> SimulatedDevice:
        return self.prefill_device or self.device if role == "prefill" else self.device
