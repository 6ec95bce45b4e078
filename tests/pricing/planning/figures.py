"""A model of 70 billion weights on H100s, and a load, for tests of plans."""

from pricing.planning.candidates import CopyFormat
from pricing.planning.devices import DEVICES
from pricing.planning.load import PlannedLoad, PromptSize
from pricing.planning.roles import ModelCopy
from pricing.roofline.capacity import Capacity, sum_costs
from pricing.roofline.gpu_step_time import ModelShape

H100 = DEVICES["H100"]
LLAMA_70B = ModelShape(68.5e9, 137e9, 80 * 2 * 8 * 128 * 2, pair_width=80 * 2 * 64 * 128)
EXACT = CopyFormat("none", "auto")


def copy(width: int) -> ModelCopy:
    sums = sum_costs(width, 80, 8192, H100.links.peer, H100.links.sum_latency_s)
    return ModelCopy(H100, Capacity(LLAMA_70B, H100.rates, 0.9, width, sums))


def load(rate: float, ttft_s: float = 1.0, tpot_s: float = 0.05, tokens: int = 2000) -> PlannedLoad:
    return PlannedLoad(
        rate=rate,
        mean_rate=rate,
        prompts=[PromptSize(tokens)],
        output_tokens=200,
        longest=tokens + 200,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
    )
