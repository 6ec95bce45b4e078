"""Holds what admission makes of a body."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.output.parts import OutputParser
from gateway.requests.sample import AdmittedPrompt


class Admitted(NamedTuple):
    """Holds the prompts of a request, and how the text of each sample is read."""

    prompts: Sequence[AdmittedPrompt]
    parser: Callable[[], OutputParser]  # makes one for each sample
