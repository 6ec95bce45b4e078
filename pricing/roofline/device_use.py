"""How much of a device steps use: the shares of its bandwidth and of its products, from a worker's totals.

    bytes      = steps x bytes of the weights + context tokens x bytes of a token's KV
    operations = 2 x weights that a token meets x rows

over the seconds in which steps ran. Attention's products and activations are left out, so both are a little low.
"""

from collections.abc import Sequence

from msgspec import Struct

from pricing.step_costs.steps import StepCosts, StepWork


class StepTotals(Struct, frozen=True):
    """Sums over a worker's steps since its start."""

    steps: int = 0
    seconds: float = 0.0  # in which steps ran
    rows: int = 0  # tokens of prompts, decoded sequences and draft tokens
    context: int = 0  # tokens whose KV decodes read
    prompt_tokens: int = 0
    pairs: float = 0.0  # of tokens of prompts and the tokens that they attend to
    sequences: int = 0  # decoding sequences, summed over the steps

    def and_steps(self, work: StepWork, durations: Sequence[float]) -> "StepTotals":
        """Adds steps of these seconds: the first has `work`, and each next step a token more of every sequence."""
        count = len(durations)
        return StepTotals(
            self.steps + count,
            self.seconds + sum(durations),
            self.rows + count * (work.prompt_tokens + work.sequences + work.rows),
            self.context + count * work.context + work.sequences * (count * (count - 1) // 2),
            self.prompt_tokens + count * work.prompt_tokens,
            self.pairs + count * work.pairs,
            self.sequences + count * work.sequences,
        )

    def since(self, earlier: "StepTotals") -> "StepTotals":
        return StepTotals(
            self.steps - earlier.steps,
            self.seconds - earlier.seconds,
            self.rows - earlier.rows,
            self.context - earlier.context,
            self.prompt_tokens - earlier.prompt_tokens,
            self.pairs - earlier.pairs,
            self.sequences - earlier.sequences,
        )

    def over(self, costs: StepCosts) -> float:
        """Returns the ratio of the steps' seconds to the seconds that `costs` predict; 1 if it is unknown.

        It is unknown if steps had draft tokens, since the totals do not say how many steps had any.
        """
        if not self.steps or self.rows > self.prompt_tokens + self.sequences:
            return 1.0
        work = StepWork(self.prompt_tokens, self.pairs, self.sequences, self.context)
        expected = costs.seconds(work) + (self.steps - 1) * costs.step
        return self.seconds / expected if self.seconds > 0 and expected > 0 else 1.0


class DeviceFigures(Struct, frozen=True):
    """Figures of a worker's model and device, from which the shares are computed; 0: unknown.

    `parameters`: weights that a token is multiplied by; `read`: bytes per second, and `multiply`: operations per
    second, by the data sheet, of the devices of all ranks together.
    """

    parameters: float = 0.0
    read: float = 0.0
    multiply: float = 0.0


class DeviceUse(Struct, frozen=True):
    """Use of a device while steps ran. Shares are of the data sheet's rates, None where these are not known."""

    busy: float  # share of the time in which steps ran
    read_share: float | None
    multiply_share: float | None

    @property
    def binds(self) -> str:
        """The resource that is nearer to its limit: `memory` or `products`; '' if the limits are unknown."""
        if self.read_share is None or self.multiply_share is None:
            return ""
        return "memory" if self.read_share >= self.multiply_share else "products"


def device_use(
    totals: StepTotals, span_s: float, weights_bytes: int, token_bytes: int, figures: DeviceFigures
) -> DeviceUse | None:
    """Computes the use from the totals of `span_s` seconds; None without a step."""
    if not totals.steps or totals.seconds <= 0 or span_s <= 0:
        return None
    read = (totals.steps * weights_bytes + totals.context * token_bytes) / totals.seconds
    operations = 2 * figures.parameters * totals.rows / totals.seconds
    return DeviceUse(
        min(1.0, totals.seconds / span_s),
        read / figures.read if figures.read else None,
        operations / figures.multiply if figures.multiply and figures.parameters else None,
    )
