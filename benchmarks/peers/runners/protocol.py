"""Talks to `benchmarks.peers`: one line of JSON for each request and each answer. Standard library only.

A runner whose model is loaded first writes `{"versions": {package: version}}`. A request is
`{"prompts": [[token id]], "output": n}`, an answer `{"seconds": s, "tokens": [[token id]]}`: `n` greedy tokens for each
prompt, past any end of text, all prompts there at the start. The end of its input ends the runner.
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


class Runner(NamedTuple):
    """A system with its model loaded."""

    packages: Sequence[str]  # whose versions are shown
    generate: Generate
    instructions: str = ""  # of the processor


def serve(streams: tuple[TextIO, TextIO], runner: Runner) -> None:
    requests, answers = streams
    versions = {package: version(package) for package in runner.packages}
    _answer(answers, {"versions": versions | ({"with": runner.instructions} if runner.instructions else {})})
    for line in requests:
        request = json.loads(line)
        begin = time.perf_counter()
        tokens = runner.generate(request["prompts"], request["output"])
        _answer(answers, {"seconds": time.perf_counter() - begin, "tokens": tokens})


class Arguments(NamedTuple):
    """A model and how it is served."""

    model: str  # file or directory
    dtype: str  # bf16 or fp32
    threads: int
    longest: int  # tokens of the longest request
    quantization: str  # of the weights


def arguments() -> tuple[str, Arguments]:
    name, model, dtype, threads, longest, quantization = sys.argv[1:]
    return name, Arguments(model, dtype, int(threads), int(longest), quantization)


def _answer(answers: TextIO, answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
