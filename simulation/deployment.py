"""Describes what is simulated: workers of one kind of device, their memory and steps, and the links between them."""

from collections.abc import Callable

from msgspec import Struct

from contracts.kv.spec import KVGroup, KVSpec
from infra.config.gateway import GatewayConfig
from infra.config.transfer import TransferConfig
from pricing.steps import StepCosts, StepWork

KV_SLICES = 4
"""Layers of a simulated pool: a prompt's KV leaves in as many slices, not in one for each layer of the model."""
BLOCK_TOKENS = 16


class SimulatedDevice(Struct, frozen=True, kw_only=True):
    """A worker's device: how long a step takes, how many KV blocks there are, and the limits of its scheduler.

    `costs` is what the worker believes before its first step; it then learns from its steps, as a real worker does.
    """

    name: str
    seconds: Callable[[StepWork], float]
    costs: StepCosts
    token_bytes: int
    blocks: int
    block_tokens: int = BLOCK_TOKENS
    step_tokens: int = 8192
    step_target_s: float = 0.2
    max_sequences: int = 256
    max_model_len: int = 1 << 17

    def spec(self) -> KVSpec:
        size = -(-self.token_bytes * self.block_tokens // KV_SLICES)
        return KVSpec((KVGroup("full", tuple(range(KV_SLICES)), self.block_tokens, size),), "simulated", "simulated")


class LinkFigures(Struct, frozen=True):
    """A link between two workers: bytes per second, and the seconds of a round trip."""

    bytes_per_second: float = 3e9
    round_trip_s: float = 0.0002


class SimulatedDeployment(Struct, frozen=True, kw_only=True):
    """Workers, links and settings. Without prefill workers, decode workers answer whole requests.

    `front_s`: seconds that a message takes between gateway and worker, and a job on its stream. `repeats`: decode steps
    that are one event at most, while no sequence ends and nothing comes; 1: each step is an event.
    """

    prefill: int
    decode: int
    device: SimulatedDevice
    link: LinkFigures = LinkFigures()
    transfer: TransferConfig = TransferConfig(frame=16 << 20)
    gateway: GatewayConfig = GatewayConfig(model="simulated")
    front_s: float = 0.0005
    repeats: int = 1
