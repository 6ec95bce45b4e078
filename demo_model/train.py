"""Makes the demo model from nothing but its own text: `python -m demo_model.train [--out DIR] [--steps N]`.

Everything is seeded, so the same machine makes the same model; other machines and thread counts round differently. On a
busy machine, one thread (OMP_NUM_THREADS=1) is faster than two that wait for each other. Matrices are trained with
Muon, embeddings and norms with AdamW.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from demo_model.corpus import SYSTEM_PROMPTS, conversations
from demo_model.evaluate import report
from demo_model.lessons.words import TOLD
from demo_model.packing import Encoded, Packer
from demo_model.tokenizer import BOS, EOS, PAD, SPECIAL, Encoder, chat_tokenizer, save_tokenizer, train_tokenizer

WEIGHTS = Path(__file__).parent / "weights"
SEED = 7
VOCABULARY_TOKENS = 2048
CONTEXT_TOKENS = 2048
TOKENIZER_SAMPLES = 4000
BATCH_TOKENS = 4096
TRAINING_STEPS = 3000
COPYING_CONVERSATIONS = 12_000  # conversations that teach copying first
MATRIX_RATE, OTHER_RATE = 0.02, 0.004
WARMUP_STEPS = 40
FIRST_SHARE = 11 / 15  # of the steps are the first round,
DECAY_SHARE = 0.5  # whose last half lowers the rate to nothing
SECOND_RATE = 0.6  # where the second round begins
SYSTEM_SHARE = 0.1
CHECKPOINT_STEPS = 100


Loss = Callable[[LlamaForCausalLM, Tensor, Tensor], Tensor]
"""Measures a model on token ids and weights `[rows, length]`."""


def llama_config(
    vocabulary: int, *, hidden: int = 192, intermediate: int = 384, layers: int = 4, head: int = 64
) -> LlamaConfig:
    """Returns the model's config: small, but with grouped queries and a head size that real kernels support."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head,
        tie_word_embeddings=True,
        max_position_embeddings=CONTEXT_TOKENS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def training_text(encoder: Encoder) -> Iterator[Encoded]:
    """Yields the encoded stream; some conversations start with a system prompt, which changes no answer."""
    rng = Random(SEED)
    for conversation in conversations(SEED, COPYING_CONVERSATIONS):
        yield encoder.encode(conversation, rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else None)


def answer_loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted cross-entropy of the tokens `[rows, length]`; the head runs only where weights are not 0."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    counts = weights[:, 1:] > 0
    logits = F.linear(hidden[counts], model.lm_head.weight).float()  # [answer tokens, vocabulary]
    losses = F.cross_entropy(logits, ids[:, 1:][counts], reduction="none")
    weight = weights[:, 1:][counts]
    return (losses * weight).sum() / weight.sum()


def rate_at(step: int, steps: int, first_share: float = FIRST_SHARE) -> float:
    """Returns the factor of the learning rate: a short rise, a plateau, a linear fall; then once more, lower.

    The second round starts from a settled model, as in SGDR (arXiv:1608.03983). If the first round has all steps, there
    is no second.
    """
    first = round(first_share * steps)
    if step < first:
        return min(1.0, (step + 1) / WARMUP_STEPS, (first - step) / (DECAY_SHARE * first))
    return SECOND_RATE * min((step - first + 1) / WARMUP_STEPS, (steps - step) / (steps - first))


def train(
    steps: int,
    packer: Packer,
    model: LlamaForCausalLM,
    checkpoint: Path | None,
    loss_of: Loss = answer_loss,
    first_share: float = FIRST_SHARE,
) -> None:
    """Runs the steps and prints progress. With a `checkpoint` file, an interrupted run continues from it."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    full = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    start, seen, mean = time.perf_counter(), 0, 0.0
    done = _restored(checkpoint, model, optimizers) if checkpoint else 0
    for _ in range(done):
        packer.next_batch()
    for step in range(done, steps):
        for group, rate in zip((g for o in optimizers for g in o.param_groups), full, strict=True):
            group["lr"] = rate * rate_at(step, steps, first_share)
        ids, weights = packer.next_batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, ids, weights)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen += ids.numel()
        mean = loss.item() if step == done else 0.95 * mean + 0.05 * loss.item()
        if (step + 1) % 25 == 0:
            spent = time.perf_counter() - start
            print(f"step {step + 1}/{steps}  loss {mean:.3f}  {seen / spent:,.0f} tokens/s  {spent:.0f} s", flush=True)
        if checkpoint and (step + 1) % CHECKPOINT_STEPS == 0:
            state = {"step": step + 1, "parts": [part.state_dict() for part in (model, *optimizers)]}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)


def _restored(checkpoint: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer]) -> int:
    """Loads an earlier run's checkpoint, and returns the number of its steps."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    for part, found in zip((model, *optimizers), state["parts"], strict=True):
        part.load_state_dict(found)
    step: int = state["step"]
    return step


def main() -> None:
    """Makes text and tokenizer, trains, saves, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="directory for the model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS, help="training steps (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="file that keeps the state, so that a stopped run can go on")
    options = parser.parse_args()
    torch.manual_seed(SEED)

    bare = train_tokenizer(conversations(SEED), TOLD, VOCABULARY_TOKENS, TOKENIZER_SAMPLES)
    pad, bos, eos = (SPECIAL.index(token) for token in (PAD, BOS, EOS))
    tokenizer = chat_tokenizer(bare, CONTEXT_TOKENS)
    model = LlamaForCausalLM(llama_config(len(tokenizer)))
    # On a CPU, for rows of a few hundred tokens in bf16, this is up to three times as fast as fused attention.
    model.set_attn_implementation("eager")
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens of vocabulary", flush=True)
    train(options.steps, Packer(training_text(Encoder(bare)), BATCH_TOKENS, pad), model, options.checkpoint)

    # The shipped weights are bf16, and the figures are those of the shipped weights.
    model.bfloat16()
    model.generation_config = GenerationConfig.from_dict(
        {
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
            # So small a model is sure of little: colder sampling keeps to the topic, and still tells another story.
            "do_sample": True,
            "temperature": 0.4,
            "top_p": 0.9,
        }
    )
    model.save_pretrained(options.out)
    save_tokenizer(tokenizer, options.out)
    print(report(options.out))


if __name__ == "__main__":
    main()
