"""Options of `baton plan`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

from msgspec import Meta

from contracts.errors import ConfigError
from contracts.kinds import Count, FilePath, KVDtype, ModelConfigSource, Names, Positive, Quantization, Rate
from infra.config.engine import RANK_COUNTS
from launcher.bench.load_options import WorkloadOptions
from launcher.planning.device_file import priced, with_device_file
from pricing.planning.candidates import CopyFormat
from pricing.planning.devices import DEVICES, PlannedDevice

MAX_DEVICES = 512


class PlanConfig(WorkloadOptions, frozen=True, kw_only=True):
    """Names the cheapest deployment that keeps an objective, from a model's config.json, without a GPU.

    Kinds of devices, numbers, tensor-parallel widths, number formats, split or not: estimated all, simulated the best.
    Examples:
      ./baton plan --model meta-llama/Llama-3.1-70B --devices H100=8,L4=8 --price H100=3 --rate 4
      ./baton plan --model mine --prompt-tokens 2000 --slo-ttft-ms 1000 --slo-tpot-ms 50
      ./baton plan --memory --model meta-llama/Llama-3.1-8B
    """

    model: ModelConfigSource
    devices: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME=N,…"},
            description="kinds of devices with the number that may be used, such as H100=8,L40S; of: "
            + ", ".join(DEVICES),
        ),
    ] = "H100"
    device_file: Annotated[
        FilePath, Meta(description="TOML or JSON file of devices and prices that adds to the table; docs/foresight.md")
    ] = ""
    price: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME=PRICE,…"},
            description="dollars per hour of a device, such as H100=3,L40S=1.2; empty: the table's, with its date",
        ),
    ] = ""
    widths: Annotated[
        str, Meta(extra={"metavar": "N,…"}, description="devices of a worker (--tensor-parallel), of 1, 2, 4 and 8")
    ] = "1,2,4,8"
    quantization: Annotated[
        Names,
        Meta(
            description="formats of weights, of none, int8, int4 and fp8; empty: all, with --memory none",
        ),
    ] = ""
    kv_dtype: Annotated[
        Names,
        Meta(
            description="formats of KV, of auto (16 bits), fp8 and int8; empty: all, with --memory auto",
        ),
    ] = ""
    simulate: Annotated[Positive, Meta(le=64, description="deployments that are simulated, the cheapest first")] = 4
    memory: Annotated[
        bool, Meta(description="only compute the memory of weights and KV, and a decode step's time for each batch")
    ] = False
    length: Annotated[
        Positive, Meta(description="with --memory: tokens of each sequence, prompt and answer together")
    ] = 2048
    batch: Annotated[Count, Meta(description="with --memory: sequences; 0: as many as fit")] = 0
    tokens_per_s: Annotated[
        Rate,
        Meta(
            ge=0,
            description="with --memory: output tokens per second of a device, measured, to price; 0: none",
        ),
    ] = 0.0

    def check(self) -> None:
        """Raises `ConfigError` for a load that cannot be planned."""
        if self.memory:
            return
        self.check_workload()
        if not (self.trace or self.prompt_tokens or self.sharegpt):
            raise ConfigError("--prompt-tokens", "", "a plan needs lengths: say them, or name a --trace")

    def kinds(self) -> Mapping[str, int]:
        """Returns how many devices of each kind may be used. Raises `ConfigError`."""
        found = {}
        for part in self.devices.split(","):
            name, _, count = (word.strip() for word in part.partition("="))
            if count and not (count.isdecimal() and 0 < int(count) <= MAX_DEVICES):
                raise ConfigError("--devices", self.devices, f"{name} needs a number from 1 to {MAX_DEVICES}")
            found[name] = int(count or MAX_DEVICES)
        return found

    def chosen_devices(self) -> list[PlannedDevice]:
        """Returns the devices of `--devices`. Raises `ConfigError` for an unknown device or an impossible price."""
        known = with_device_file(DEVICES, Path(self.device_file)) if self.device_file else dict(DEVICES)
        for name in self.kinds():
            if name not in known:
                raise ConfigError("--devices", name, f"is none of {', '.join(known)}; --device-file adds others")
        for part in self.price.split(",") if self.price else ():
            name, _, price = (word.strip() for word in part.partition("="))
            if name not in self.kinds():
                raise ConfigError("--price", part, f"is for none of --devices {self.devices}")
            try:
                dollars = float(price)
            except ValueError:
                raise ConfigError("--price", part, "expected a device and dollars per hour, such as H100=3") from None
            known[name] = priced(known[name], dollars, "", "--price", "--price")
        return [known[name] for name in self.kinds()]

    def priced_devices(self) -> list[PlannedDevice]:
        """Returns the same devices. Raises `ConfigError` also for a device without a price."""
        found = self.chosen_devices()
        for device in found:
            if device.price is None:
                raise ConfigError(
                    "--price", None, f"{device.name} has no price in the table; say --price {device.name}=…"
                )
        return found

    def copy_widths(self) -> list[int]:
        """Raises `ConfigError`."""
        texts = self.widths.split(",")
        if not set(texts) <= {str(width) for width in RANK_COUNTS}:
            raise ConfigError("--widths", self.widths, f"expected some of {', '.join(map(str, RANK_COUNTS))}")
        return sorted({int(text) for text in texts})

    def formats(self) -> list[CopyFormat]:
        """Raises `ConfigError`."""
        weights = _some(self.quantization, get_args(Quantization), "--quantization")
        kv = _some(self.kv_dtype, get_args(KVDtype), "--kv-dtype")
        return [CopyFormat(one, other) for one in weights for other in kv]


def _some(text: str, known: tuple[str, ...], option: str) -> list[str]:
    """Returns the formats that `text` names, in the order of `known`; without a name all. Raises `ConfigError`."""
    given = [part.strip() for part in text.split(",")] if text else list(known)
    if not set(given) <= set(known):
        raise ConfigError(option, text, f"expected some of {', '.join(known)}")
    return [name for name in known if name in given]
