"""Runs llama.cpp through the C API of llama-cpp-python.

All sequences are decoded in one batch, and prompts in batches that are as large as llama.cpp's own default, as its
server does.
"""

import ctypes
from itertools import islice

import llama_cpp as api
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.runners.protocol import Arguments, Generate, Prompts, Runner

CALL_TOKENS = 2048
"""llama.cpp itself computes 512 of them at a time."""
MAX_SEQUENCES = 64


class Model:
    """One loaded model. Each request has a context of its own: an empty KV cache of the right size."""

    def __init__(self, path: str, threads: int) -> None:
        self._threads = threads
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"{path} cannot be loaded")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(CALL_TOKENS, 0, 1)

    def generate(self, prompts: Prompts, output: int) -> Prompts:
        settings = api.llama_context_default_params()
        settings.n_ctx = sum(len(prompt) + output for prompt in prompts) + 256
        settings.n_batch = CALL_TOKENS
        settings.n_seq_max = min(MAX_SEQUENCES, len(prompts))
        settings.n_threads = settings.n_threads_batch = self._threads
        settings.kv_unified = True
        context = api.llama_init_from_model(self._model, settings)
        try:
            return self._generate(context, prompts, output)
        finally:
            api.llama_free(context)

    def _generate(self, context: ctypes.c_void_p, prompts: Prompts, output: int) -> Prompts:
        made: Prompts = [[] for _ in prompts]
        places = (
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        )
        while part := list(islice(places, CALL_TOKENS)):
            self._decode(context, part, made)
        for _ in range(output - 1):
            ends = [len(prompt) + len(tokens) - 1 for prompt, tokens in zip(prompts, made, strict=True)]
            self._decode(context, [(made[each][-1], end, each, True) for each, end in enumerate(ends)], made)
        return made

    def _decode(self, context: ctypes.c_void_p, part: list[tuple[int, int, int, bool]], made: Prompts) -> None:
        batch = self._batch
        batch.n_tokens = len(part)
        for row, (token, position, sequence, last) in enumerate(part):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, last
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        status = api.llama_decode(context, batch)
        if status:
            raise SystemExit(f"llama_decode fails with {status}")
        for row, (_, _, sequence, last) in enumerate(part):
            if last:
                logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, row), shape=(self._vocabulary,))
                made[sequence].append(int(logits.argmax()))


def instructions() -> str:
    said = api.llama_print_system_info().decode().rpartition("CPU :")[2]
    features = (part.partition("=") for part in said.split("|"))
    return " ".join(name.strip() for name, _, value in features if value.strip() == "1")


def lookup(given: Arguments) -> Generate:
    """Returns the generation of `Llama` with its own prompt lookup, which drafts for a single sequence only."""
    model = api.Llama(
        given.model,
        n_ctx=given.longest,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        draft_model=LlamaPromptLookupDecoding(),
        verbose=False,
    )

    def answer(prompt: list[int], output: int) -> list[int]:
        model.reset()  # or it would keep the common beginning of two prompts
        return [int(token) for token in islice(model.generate(prompt, temp=0.0), output)]

    return lambda prompts, output: [answer(prompt, output) for prompt in prompts]


def load(given: Arguments, *, ngram: bool) -> Runner:
    if ngram:
        return Runner(("llama-cpp-python",), lookup(given))
    api.llama_log_set(QUIET, ctypes.c_void_p(0))
    return Runner(("llama-cpp-python", "numpy"), Model(given.model, given.threads).generate, instructions())


QUIET = api.llama_log_callback(lambda level, text, data: None)
