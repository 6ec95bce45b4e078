"""Makes a Llama, or a Mixtral, with random weights: `python -m benchmarks.models.random_model DIR [SHAPE]`.

Random weights run at the speed of trained weights. Its tokenizer spells token 12 as `w12`, so the text of an answer
spells its tokens, and can be sent again as a part of the next prompt.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

SHAPES = {  # vocabulary, hidden, intermediate, layers, heads, KV heads; experts, and experts used
    "tiny": (4096, 128, 384, 4, 4, 2, 0, 0),
    "135m": (49152, 576, 1536, 30, 9, 3, 0, 0),
    "142m": (49152, 512, 2048, 30, 8, 4, 0, 0),  # sizes that several ranks divide
    "500m": (151936, 896, 4864, 24, 14, 2, 0, 0),
    "moe-1b": (49152, 1024, 1280, 14, 16, 4, 16, 2),  # 1.0B parameters, of which a token uses 0.2B
}


def make(directory: Path, shape: str, *, seed: int = 0, spread: float = 0.02) -> None:
    """Writes config, bf16 weights of standard deviation `spread`, and tokenizer, in Hugging Face format.

    With Llama's own 0.02 attention hardly distinguishes positions; with 0.1 it decides the next token.
    """
    vocabulary, hidden, intermediate, layers, heads, kv_heads, experts, used = SHAPES[shape]
    torch.manual_seed(seed)
    mixture = {"num_local_experts": experts, "num_experts_per_tok": used} if experts else {}
    config = (MixtralConfig if experts else LlamaConfig)(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        **mixture,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(vocabulary)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(directory / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models.random_model", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to write it")
    parser.add_argument("shape", nargs="?", default="135m", choices=sorted(SHAPES))
    parser.add_argument("--spread", type=float, default=0.02, help="standard deviation of the weights")
    given = parser.parse_args()
    make(given.directory, given.shape, spread=given.spread)
    print(f"{given.directory}: a random {given.shape} model in bf16")


if __name__ == "__main__":
    main()
