"""Runs llama.cpp through the C API of llama-cpp-python, for `benchmarks.peers`.

All sequences are decoded in one batch, and prompts in batches that are as large as llama.cpp's own default, as its
server does.
"""

import ctypes
from itertools import islice

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

import llama_cpp as api  # noqa: E402
import numpy as np  # noqa: E402

BATCH = 2048
"""Tokens of one call; llama.cpp itself computes them 512 at a time."""
SEQUENCES = 64


class Model:
    """Runs one model, with a context for each request: an empty KV cache of the right size."""

    def __init__(self, path: str, threads: int) -> None:
        self._threads = threads
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"{path} cannot be loaded")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(BATCH, 0, 1)

    def generate(self, prompts: Prompts, output: int) -> Prompts:
        settings = api.llama_context_default_params()
        settings.n_ctx = sum(len(prompt) + output for prompt in prompts) + 256
        settings.n_batch = BATCH
        settings.n_seq_max = min(SEQUENCES, len(prompts))
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
        while part := list(islice(places, BATCH)):
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


def main() -> None:
    given = arguments()
    api.llama_log_set(QUIET, ctypes.c_void_p(0))
    model = Model(given.model, given.threads)
    serve(STREAMS, ("llama-cpp-python", "numpy"), model.generate, instructions())


QUIET = api.llama_log_callback(lambda level, text, data: None)

if __name__ == "__main__":
    main()
