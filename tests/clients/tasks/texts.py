"""Gives lm-eval the documents of the three small tasks, about what the demo model knows."""

from typing import Any

import datasets

ANIMALS = {
    "owls": "mice",
    "cats": "fish",
    "elephants": "grass",
    "foxes": "berries",
    "whales": "krill",
    "bees": "nectar",
}
TEXTS = [
    "Once upon a time, a little fox lived near the river. One day it found a lantern.",
    "The moon came up, the stars were clear, and the owl said: I like it here.",
    "A prefill worker reads the prompt, and a decode worker turns it into tokens.",
    "Elephants remember friends for many years. An elephant drinks with its trunk.",
]


def _split(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"test": datasets.Dataset.from_list(rows)}


def choices(**_: Any) -> dict[str, Any]:
    rows = []
    for a in range(1, 9):
        for b in range(1, 4):
            answers = [a + b, a + b + 1, a + b + 3, abs(a - b)]
            turn = (a + b) % 4
            rows.append(
                {
                    "question": f"User: What is {a} + {b}?\nBot: {a} + {b} =",
                    "choices": [f"{answer}." for answer in answers[turn:] + answers[:turn]],
                    "answer": (4 - turn) % 4,
                }
            )
    foods = list(ANIMALS.values())
    rows += [
        {"question": f"What do {animal} eat? They eat", "choices": foods, "answer": foods.index(food)}
        for animal, food in ANIMALS.items()
    ]
    return _split(rows)


def texts(**_: Any) -> dict[str, Any]:
    return _split([{"text": text} for text in [*TEXTS, " ".join(TEXTS * 8)]])


def sums(**_: Any) -> dict[str, Any]:
    return _split(
        [{"question": f"What is {a} + {b}?", "answer": f"= {a + b}."} for a, b in [(2, 3), (4, 5), (7, 6), (9, 1)]]
    )
