"""Talks to `benchmarks.peers`: one line of JSON for each request and each answer. Standard library only.

The runner first says `{"versions": {package: version}}`, once its model is loaded. A request is
`{"prompts": [[token id]], "output": n}`, an answer `{"seconds": s, "tokens": [[token id]]}`: `n` tokens for each
prompt, chosen greedily, whatever ends a text ignored, all prompts there at the start. The end of its input ends the
runner.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple, TextIO

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], Prompts]


def take_streams() -> tuple[TextIO, TextIO]:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def serve(streams: tuple[TextIO, TextIO], packages: Sequence[str], generate: Generate, instructions: str = "") -> None:
    requests, answers = streams
    versions = {package: version(package) for package in packages}
    _answer(answers, {"versions": {**versions, **({"with": instructions} if instructions else {})}})
    for line in requests:
        request = json.loads(line)
        begin = time.perf_counter()
        tokens = generate(request["prompts"], request["output"])
        _answer(answers, {"seconds": time.perf_counter() - begin, "tokens": tokens})


class Arguments(NamedTuple):
    """What a runner is told: a file or directory, `bf16` or `fp32`, and what the weights are quantized to."""

    model: str
    dtype: str
    threads: int
    longest: int  # tokens of the longest request
    quantization: str


def arguments() -> Arguments:
    model, dtype, threads, longest, quantization = sys.argv[1:]
    return Arguments(model, dtype, int(threads), int(longest), quantization)


def _answer(answers: TextIO, answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
