"""Runs transformers' `generate`."""

import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.runners.protocol import Arguments, Generate, Prompts, Runner


def load(given: Arguments, *, ngram: bool) -> Runner:
    assert not ngram
    torch.set_num_threads(given.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[given.dtype]
    return Runner(("transformers", "torch"), generating(given.model, dtype))


def generating(directory: str, dtype: torch.dtype) -> Generate:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None

    def generate(prompts: Prompts, output: int) -> Prompts:
        given = torch.tensor(prompts)
        with torch.inference_mode():
            made = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=output,
                min_new_tokens=output,
                do_sample=False,
                pad_token_id=0,
            )
        tokens: Prompts = made[:, given.shape[1] :].tolist()
        return tokens

    return generate
