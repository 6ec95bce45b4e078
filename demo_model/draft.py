"""Trains a draft model for the demo model: `python -m demo_model.draft [--out DIR] [--steps N]`.

A Llama of two layers, about a quarter of the demo model's size, with its tokenizer. It reads the same texts, and learns
the demo model's own probabilities of each next token instead of the text's (Hinton et al., arXiv:1503.02531): a
proposal is accepted by what the target would say, right or wrong (DistillSpec, arXiv:2310.08461).
"""

import argparse
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from demo_model.packing import Packer
from demo_model.tokenizer import Encoder
from demo_model.train import BATCH_TOKENS, SEED, WEIGHTS, Loss, llama_config, train, training_text

DRAFT = Path(__file__).parent / "draft_weights"
TRAINING_STEPS = 4400
TOKENIZER = "tokenizer.json"


def draft_config(vocabulary: int) -> LlamaConfig:
    """Returns the draft's config: copying needs two layers, and bf16 weights stay below a megabyte."""
    return llama_config(vocabulary, hidden=128, intermediate=192, layers=2, head=32)


def told_by(teacher: LlamaForCausalLM) -> Loss:
    """Returns the loss: the divergence from the teacher's distribution to the draft's, over the answers' tokens."""

    def divergence(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
        counts = weights[:, 1:] > 0

        def logits(asked: LlamaForCausalLM) -> Tensor:
            hidden = asked.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            return F.linear(hidden[counts], asked.lm_head.weight).float()  # [answer tokens, vocabulary]

        with torch.no_grad():
            told = logits(teacher).log_softmax(-1)
        return F.kl_div(logits(model).log_softmax(-1), told, reduction="batchmean", log_target=True)

    return divergence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DRAFT, help="directory for the draft model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS, help="training steps (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="file that keeps the state, so that a stopped run can go on")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    teacher = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.bfloat16)
    model = LlamaForCausalLM(draft_config(len(tokenizer)))
    for each in (teacher, model):
        each.set_attn_implementation("eager")  # as in training the demo model
    print(f"{model.num_parameters():,} parameters, of {teacher.num_parameters():,}", flush=True)
    packer = Packer(training_text(Encoder(tokenizer.backend_tokenizer)), BATCH_TOKENS, tokenizer.pad_token_id)
    train(options.steps, packer, model, options.checkpoint, told_by(teacher), first_share=1.0)
    model.bfloat16()
    model.save_pretrained(options.out)
    if not (options.out / TOKENIZER).exists():  # what is shipped has a link
        shutil.copyfile(WEIGHTS / TOKENIZER, options.out / TOKENIZER)


if __name__ == "__main__":
    main()
