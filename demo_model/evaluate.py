"""Measures the held-out figures of a model directory: `python -m demo_model.evaluate [DIR] [--dtype bfloat16]`.

Every question is new to the model (see `split`), every answer is greedy.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model import animals, baton, echo, reach, stories, sums, words
from demo_model.conversation import Exchange
from demo_model.smalltalk import CAN_DO
from demo_model.split import Split

SEED = 2024
BATCH = 50
LIMIT = 320
MENTIONS = 3  # once in the first sentence, which only repeats the question, and then twice in the story

Check = Callable[[Exchange, str], bool]


def mentions_all(exchange: Exchange, answer: str) -> bool:
    """Checks that a story of some length tells about every noun of the question, and names its place."""
    return len(answer.split()) >= 40 and all(
        answer.lower().count(noun.lower()) >= (1 if noun in words.PLACES else MENTIONS) for noun in exchange.subject
    )


def contains(exchange: Exchange, answer: str) -> bool:
    """Checks that one of the right answers is in it."""
    return any(text in answer for text in exchange.subject)


def repeats(exchange: Exchange, answer: str) -> bool:
    """Checks that it is exactly what was to be said."""
    return answer == exchange.answer


def declines(exchange: Exchange, answer: str) -> bool:
    """Checks that it says what it can do instead, and answers nothing."""
    return any(offer in answer for offer in CAN_DO)


HELD_OUT = Split.HELD_OUT


def _stories(reserve: stories.Reserve) -> Callable[[Random], Exchange]:
    return lambda rng: stories.story(rng, HELD_OUT, reserve)


FIGURES: dict[str, tuple[int, Callable[[Random], Exchange], Check]] = {
    "stories on topic (pairs and phrasings held out)": (200, _stories(stories.Reserve.KNOWN), mentions_all),
    "stories on topic (nouns of no training story)": (100, _stories(stories.Reserve.UNSEEN), mentions_all),
    "stories on topic (made-up words)": (100, _stories(stories.Reserve.MADE_UP), mentions_all),
    "sums to 20 (operands and phrasing held out)": (250, lambda rng: sums.addition(rng, HELD_OUT), contains),
    "sums to 20 (phrasings never trained on)": (100, lambda rng: sums.addition(rng, HELD_OUT, sums.NEW_ASKS), contains),
    "differences (operands and phrasing held out)": (100, lambda rng: sums.difference(rng, HELD_OUT), contains),
    "animal facts (animal and phrasing held out)": (100, lambda rng: animals.fact(rng, HELD_OUT), contains),
    "words of Baton (phrasing held out)": (100, lambda rng: baton.about_baton(rng, HELD_OUT), contains),
    "words repeated exactly (made-up words)": (100, echo.echo, repeats),
    "out of reach, and says so (new draws)": (100, reach.out_of_reach, declines),
}


def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, asks: list[str]) -> list[str]:
    """Answers single questions greedily. An answer that does not end within LIMIT tokens comes back cut."""
    generator: Any = model  # by its annotations, `generate` fits none of the library's own models
    answers: list[str] = []
    for start in range(0, len(asks), BATCH):
        chats = [[{"role": "user", "content": ask}] for ask in asks[start : start + BATCH]]
        inputs: Any = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            output = generator.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def report(directory: Path, dtype: str = "float32", show: int = 0) -> str:
    """Writes one line per figure; with `show`, also that many failures of each."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    lines = [f"Held-out figures of {directory.name} in {dtype}, greedy:"]
    for name, (count, make, right) in FIGURES.items():
        rng = Random(SEED)
        exchanges = [make(rng) for _ in range(count)]
        answers = generate(model, tokenizer, [exchange.ask for exchange in exchanges])
        wrong = [(e, a) for e, a in zip(exchanges, answers, strict=True) if not right(e, a)]
        lines.append(f"{name:50} {1 - len(wrong) / count:6.1%} of {count}")
        lines += [f"    > {exchange.ask}\n    {answer}" for exchange, answer in wrong[:show]]
    return "\n".join(lines)


def main() -> None:
    """Prints the report of a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=Path(__file__).parent / "weights")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print for each figure")
    options = parser.parse_args()
    print(report(options.directory, options.dtype, options.show))


if __name__ == "__main__":
    main()
