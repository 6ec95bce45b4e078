"""Runs llama-cpp-python's `Llama` with its own prompt lookup, for `benchmarks.speculation.peers`: one text at a time.

It guesses for a single sequence only, so prompts are served one after the other.
"""

from itertools import islice

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

from llama_cpp import Llama  # noqa: E402
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # noqa: E402


def main() -> None:
    given = arguments()
    model = Llama(
        given.model,
        n_ctx=given.longest,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        draft_model=LlamaPromptLookupDecoding(),
        verbose=False,
    )

    def generate(prompts: Prompts, output: int) -> Prompts:
        return [_answer(model, prompt, output) for prompt in prompts]

    serve(STREAMS, ("llama-cpp-python",), generate)


def _answer(model: Llama, prompt: list[int], output: int) -> list[int]:
    model.reset()  # or it would keep what prompts have in common
    return [int(token) for token in islice(model.generate(prompt, temp=0.0), output)]


if __name__ == "__main__":
    main()
