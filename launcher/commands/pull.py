"""Downloads a model from the Hugging Face hub into this user's cache (`baton pull`), where `up` finds it."""

import sys
from collections.abc import Sequence

from msgspec import Struct

from checkpoints.model_location import directory_of, locate
from contracts.errors import BatonError, ConfigError
from infra.cli import parse
from launcher.refusal import refusing
from launcher.stages import StageDisplay

FAILED_STATUS = 1  # exit status


class PullConfig(Struct, frozen=True, kw_only=True):
    """Downloads a model from the Hugging Face hub: ./baton pull NAME. HF_TOKEN is the token for a model that needs one.

    Example: ./baton pull Qwen/Qwen3-0.6B, or ./baton pull owner/name:Q4_K_M for a GGUF file
    """


@refusing
def pull(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 it is here, 1 it cannot be fetched, 2 bad input."""
    names = [word for word in arguments if not word.startswith("-")]
    stages = StageDisplay(sys.stdout)
    parse(PullConfig, [word for word in arguments if word.startswith("-")], "baton pull")
    if len(names) != 1:
        raise ConfigError("NAME", " ".join(names) or None, "expected one name: ./baton pull owner/name")
    if found := directory_of(names[0], "NAME"):
        raise ConfigError("NAME", names[0], f"is on this host already: {found}")
    try:
        directory = locate(names[0], lambda stage, percent: stages.show(names[0], stage, int(percent)))
    except BatonError as error:
        stages.settle()
        print(f"error: {error}", file=sys.stderr)
        return FAILED_STATUS
    stages.say(f"{names[0]} is in {directory}; ./baton up --model {names[0]} serves it")
    return 0
