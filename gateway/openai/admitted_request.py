"""Defines the result of admission."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.output.parts import OutputParser
from gateway.requests.sample import AdmittedPrompt


class AdmittedRequest(NamedTuple):
    """The prompts of a request, and the parser of its samples' text."""

    prompts: Sequence[AdmittedPrompt]
    parser: Callable[[], OutputParser]  # called once for each sample
