"""Options of simulated workers and gateways, in the words of `baton up`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from contracts.adapters import check_name
from contracts.errors import AdapterError, ConfigError
from contracts.kinds import APIKeys, Slo
from contracts.slo import Objective, parse_objective
from infra.config.engine import RANK_COUNTS, DraftOptions
from infra.config.speculation import MAX_DRAFT_TOKENS, Proposing
from infra.keys.key_file import read_keys
from simulation.senders import KeyTraffic

MAX_ADAPTER_RANK = 1024


class FeatureOptions(DraftOptions, frozen=True, kw_only=True):
    """Figures that a real deployment reads from devices and files, and the API keys of its requests."""

    host_gb_per_s: Annotated[
        float,
        Meta(
            extra={"metavar": "GB/S"},
            ge=0,
            description="GB/s between a worker's GPUs and host memory; 0: that of the GPU's data sheet",
        ),
    ] = 0.0
    acceptance_rate: Annotated[
        float,
        Meta(
            extra={"metavar": "SHARE"},
            ge=0,
            le=1,
            description="chance that a draft token is accepted if all before it were; of medusa, the first head's "
            "likeliest token's",
        ),
    ] = 0.7
    lora: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=RANK"},
            description="adapter of this rank, in all linear layers; may be repeated: each request uses one of them",
        ),
    ] = ()
    api_keys: APIKeys = ()
    key_shares: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME=N,…"},
            description="how often requests come with which key of --api-keys, such as flood=9,quiet=1; empty: with "
            "each as often",
        ),
    ] = ""
    slo: Slo = ""

    def check(self, *, with_costs: bool, prefill: int) -> None:
        """Raises `ConfigError` for options that exclude each other. `with_costs`: measured costs replace rooflines."""
        self._check_widths(prefill)
        self._check_speculation()
        self.adapter_ranks()
        self.keys()
        self.objective()
        if self.host_gb_per_s and not self.host_kv_memory:
            raise ConfigError("--host-gb-per-s", self.host_gb_per_s, "how much may go there? --host-kv-memory says it")
        if not with_costs:
            return
        if self.host_kv_memory and not self.host_gb_per_s:
            raise ConfigError("--host-kv-memory", self.host_kv_memory, "with --costs it needs --host-gb-per-s")
        known_by_roofline = {
            **self.widths_by_option(),
            "--lora": ",".join(self.lora),
            "--speculation": self.proposing not in ("none", "ngram") and self.speculation,
        }
        for option, value in known_by_roofline.items():
            if value:
                raise ConfigError(option, value, "cannot be used with --costs, whose steps were measured without it")

    def _check_widths(self, prefill: int) -> None:
        for option, width in self.widths_by_option().items():
            if width and width not in RANK_COUNTS:
                raise ConfigError(option, width, f"expected one of {', '.join(map(str, RANK_COUNTS))}")
        if self.prefill_tp and not prefill:
            raise ConfigError("--prefill-tp", self.prefill_tp, "there are no prefill workers: --prefill is 0")

    def _check_speculation(self) -> None:
        kind = self.proposing
        if self.draft_model and kind != "draft":
            raise ConfigError("--draft-model", self.draft_model, f"--speculation {kind} does not read it; draft does")
        if kind == "draft" and not self.draft_model:
            raise ConfigError("--speculation", kind, "it needs --draft-model")
        if kind == "none" and self.speculative_tokens:
            raise ConfigError("--speculative-tokens", self.speculative_tokens, "with --speculation none nobody drafts")

    @property
    def proposing(self) -> Proposing:
        """The proposer of draft tokens; with `auto` the draft model, if one is given, as a worker chooses."""
        if self.speculation != "auto":
            return self.speculation
        return "draft" if self.draft_model else "ngram"

    @property
    def draft_tokens(self) -> int:
        """Draft tokens of a sequence in a step, at most; 0 without speculation."""
        return self.speculative_tokens or MAX_DRAFT_TOKENS[self.proposing]

    def adapter_ranks(self) -> dict[str, int]:
        """Returns the rank of each adapter, by name. Raises `ConfigError`."""
        ranks: dict[str, int] = {}
        for text in self.lora:
            name, _, rank = text.partition("=")
            try:
                check_name(name)
            except AdapterError as error:
                raise ConfigError("--lora", text, str(error)) from None
            if not rank.isdecimal() or not 1 <= int(rank) <= MAX_ADAPTER_RANK or name in ranks:
                why = f"expected a new name and a rank from 1 to {MAX_ADAPTER_RANK}, such as sql=16"
                raise ConfigError("--lora", text, why)
            ranks[name] = int(rank)
        if len(ranks) > self.max_loras:
            raise ConfigError("--max-loras", self.max_loras, f"{len(ranks)} adapters are given by --lora")
        return ranks

    def objective(self) -> Objective:
        """Returns the gateway's usual objective. Raises `ConfigError`."""
        return parse_objective(self.slo) if self.slo else Objective()

    def keys(self) -> Sequence[KeyTraffic]:
        """Returns the API keys of the requests; without keys (). Raises `ConfigError`."""
        records = {record.name: record for path in self.api_keys for record in read_keys(Path(path))}
        if self.api_keys and not records:
            raise ConfigError("--api-keys", ",".join(self.api_keys), "has no key")
        if not self.key_shares:
            return [KeyTraffic(record) for record in records.values()]
        found = []
        for part in self.key_shares.split(","):
            name, _, share = (word.strip() for word in part.partition("="))
            if name not in records:
                raise ConfigError("--key-shares", part, "names no key of --api-keys")
            try:
                number = float(share)
            except ValueError:
                number = 0.0
            if not 0 < number < float("inf"):
                raise ConfigError("--key-shares", part, "expected a key and a number above 0, such as flood=9")
            found.append(KeyTraffic(records[name], number))
        return found
