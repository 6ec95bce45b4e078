"""Runs transformers' `generate`, for `benchmarks.peers`."""

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


def main() -> None:
    told = arguments()
    torch.set_num_threads(told.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[told.dtype]
    model = AutoModelForCausalLM.from_pretrained(told.model, dtype=dtype)
    model.eval()
    model.generation_config.eos_token_id = None

    def generate(prompts: Prompts, output: int) -> Prompts:
        with torch.inference_mode():
            given = torch.tensor(prompts)
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

    serve(STREAMS, ("transformers", "torch"), generate)


if __name__ == "__main__":
    main()
