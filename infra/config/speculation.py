"""Chooses the proposer of draft tokens from the options, or refuses contradicting options by name."""

from typing import Literal

from msgspec.structs import replace

from contracts.errors import ConfigError
from infra.config.engine import EngineConfig, EngineOptions

Proposing = Literal["none", "ngram", "draft", "medusa", "eagle"]
PROPOSERS_WITH_WEIGHTS: tuple[Proposing, ...] = ("eagle", "medusa", "draft")
"""Proposers with weights of their own. With `--speculation auto` the first whose weights are given is chosen."""
MAX_DRAFT_TOKENS: dict[Proposing, int] = {"none": 0, "ngram": 16, "draft": 7, "medusa": 16, "eagle": 4}
"""Default maximum of draft tokens per sequence and step; the controller decides how many pay off."""
WEIGHTS_OPTIONS: dict[Proposing, str] = {"eagle": "--eagle", "medusa": "--medusa", "draft": "--draft-model"}


def proposing(options: EngineOptions) -> Proposing:
    """Returns the proposer. Raises `ConfigError` for options that contradict each other."""
    who = _chosen(options)
    if options.acceptance != "exact" and who != "medusa":
        raise ConfigError("--acceptance", options.acceptance, f"it is for guesses of Medusa heads, not of {who}")
    if options.speculative_answers and who != "ngram":
        why = f"it is for guesses from texts (ngram), not of {who}"
        raise ConfigError("--speculative-answers", options.speculative_answers, why)
    return who


def _chosen(options: EngineOptions) -> Proposing:
    asked = options.speculation
    paths: dict[Proposing, str] = {
        "eagle": options.eagle,
        "medusa": options.medusa,
        "draft": options.draft_model,
    }
    if asked == "auto":
        return next((kind for kind in PROPOSERS_WITH_WEIGHTS if paths[kind]), "ngram")
    for kind, path in paths.items():
        if path and kind != asked:
            raise ConfigError(
                WEIGHTS_OPTIONS[kind], path, f"--speculation {asked} does not read it; {kind} or auto does"
            )
        if kind == asked and not path and kind != "eagle":  # a checkpoint may have a head of its own
            raise ConfigError("--speculation", asked, f"it needs {WEIGHTS_OPTIONS[kind]}")
    if asked == "none" and options.speculative_tokens:
        raise ConfigError("--speculative-tokens", options.speculative_tokens, "with --speculation none nobody proposes")
    return asked


def on_prefill(config: EngineConfig) -> EngineConfig:
    """Returns the settings of a prefill worker, which drafts nothing, but computes an EAGLE head's KV of prompts.

    Raises `ConfigError` as `proposing` does.
    """
    if proposing(config) == "eagle":
        return replace(config, speculation="eagle", draft_model="", medusa="")
    return replace(
        config,
        speculation="none",
        speculative_tokens=0,
        speculative_answers=0,
        acceptance="exact",
        draft_model="",
        medusa="",
        eagle="",
    )
