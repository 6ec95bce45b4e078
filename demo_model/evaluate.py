"""Measures the held-out figures of a model directory: `python -m demo_model.evaluate [DIR] [--dtype bfloat16]`.

Every question is new to the model (see `split`), every answer is greedy.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.conversation import Conversation, Exchange, messages
from demo_model.lessons import animals, baton, echo, reach, skills, stories, sums, tools, words
from demo_model.lessons.smalltalk import CAN_DO
from demo_model.split import Split

SEED = 2024
PROMPTS_PER_BATCH = 50
MAX_ANSWER_TOKENS = 320
MIN_TOPIC_MENTIONS = 3  # once in the first sentence, which only repeats the question, and then twice in the story

Check = Callable[[Exchange, str], bool]


class Figure(NamedTuple):
    """One figure: the number and kind of conversations, and the check of the last answer.

    With `told`, the question's calls are already answered, and the text after them is judged.
    """

    samples: int
    make: Callable[[Random], Conversation]
    right: Check
    told: bool = False


def mentions_all(exchange: Exchange, answer: str) -> bool:
    """Checks that a story of some length tells about every noun of the question, and names its place."""
    return len(answer.split()) >= 40 and all(
        answer.lower().count(noun.lower()) >= (1 if noun in words.PLACES else MIN_TOPIC_MENTIONS)
        for noun in exchange.subject
    )


def contains(exchange: Exchange, answer: str) -> bool:
    """Checks that the answer contains one of the right answers."""
    return any(text in answer for text in exchange.subject)


def repeats(exchange: Exchange, answer: str) -> bool:
    """Checks for exactly the expected text."""
    return answer == exchange.answer


def declines(exchange: Exchange, answer: str) -> bool:
    """Checks that the answer declines, and says what the model can do instead."""
    return any(offer in answer for offer in CAN_DO)


def calls_right(exchange: Exchange, answer: str) -> bool:
    """Checks that the right tools are called, with the right arguments, and nothing else is said."""
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in exchange.calls]
    try:
        return [json.loads(text) for text in _CALL.findall(answer)] == calls and not _CALL.sub("", answer).strip()
    except json.JSONDecodeError:
        return False


def uses_result(exchange: Exchange, answer: str) -> bool:
    """Checks that the answer contains all results of the tools, and the question's subject."""
    return all(word in answer for word in exchange.subject)


def calls_nothing(exchange: Exchange, answer: str) -> bool:
    """Checks that no tool is called."""
    return "<tool_call>" not in answer


HELD_OUT = Split.HELD_OUT
_CALL = re.compile("<tool_call>(.*?)</tool_call>", re.DOTALL)


def _alone(make: Callable[[Random], Exchange]) -> Callable[[Random], Conversation]:
    return lambda rng: Conversation((make(rng),))


def _stories(reserve: stories.Reserve) -> Callable[[Random], Conversation]:
    return _alone(lambda rng: stories.story(rng, HELD_OUT, reserve))


def _known_tool(rng: Random) -> Conversation:
    """Draws a question for a tool of the training text, in held-out phrasing."""
    others = tools.toolbox(rng)
    return tools.using(rng, HELD_OUT, rng.choice(others), others)


def _new_tool(rng: Random) -> Conversation:
    """Draws a question for a tool with a made-up name and a made-up argument."""
    return tools.using(rng, HELD_OUT, skills.fact(rng, made_up=True), tools.toolbox(rng))


def _no_tool(rng: Random) -> Conversation:
    makers = (
        lambda rng: stories.story(rng, HELD_OUT, stories.Reserve.KNOWN),
        lambda rng: sums.addition(rng, HELD_OUT),
        lambda rng: animals.fact(rng, HELD_OUT),
        lambda rng: baton.about_baton(rng, HELD_OUT),
        reach.out_of_reach,
    )
    return tools.unneeded(rng, rng.choice(makers))


FIGURES: dict[str, Figure] = {
    "stories on topic (pairs and phrasings held out)": Figure(200, _stories(stories.Reserve.KNOWN), mentions_all),
    "stories on topic (nouns of no training story)": Figure(100, _stories(stories.Reserve.UNSEEN), mentions_all),
    "stories on topic (made-up words)": Figure(100, _stories(stories.Reserve.MADE_UP), mentions_all),
    "sums to 20 (operands and phrasing held out)": Figure(
        250, _alone(lambda rng: sums.addition(rng, HELD_OUT)), contains
    ),
    "sums to 20 (phrasings never trained on)": Figure(
        100, _alone(lambda rng: sums.addition(rng, HELD_OUT, sums.NEW_ASKS)), contains
    ),
    "differences (operands and phrasing held out)": Figure(
        100, _alone(lambda rng: sums.difference(rng, HELD_OUT)), contains
    ),
    "animal facts (animal and phrasing held out)": Figure(
        100, _alone(lambda rng: animals.fact(rng, HELD_OUT)), contains
    ),
    "words of Baton (phrasing held out)": Figure(100, _alone(lambda rng: baton.about_baton(rng, HELD_OUT)), contains),
    "words repeated exactly (made-up words)": Figure(100, _alone(echo.echo), repeats),
    "out of reach, and says so (new draws)": Figure(100, _alone(reach.out_of_reach), declines),
    "calls the right tool with the right arguments": Figure(200, _known_tool, calls_right),
    "calls a tool of a made-up name, with made-up words": Figure(100, _new_tool, calls_right),
    "says what the tool gave back": Figure(200, _known_tool, uses_result, told=True),
    "says what such a tool gave back": Figure(100, _new_tool, uses_result, told=True),
    "calls no tool where none fits": Figure(100, _no_tool, calls_nothing),
}


def prompt(tokenizer: PreTrainedTokenizerBase, conversation: Conversation, told: bool = False) -> str:
    """Renders a conversation up to its last answer; with `told`, up to the text after its calls."""
    chat = messages(conversation.turns)[:-1]
    if not told:
        chat = chat[: 1 + max(place for place, message in enumerate(chat) if message["role"] == "user")]
    template: Any = tokenizer.apply_chat_template
    text: str = template(chat, tools=conversation.definitions(), add_generation_prompt=True, tokenize=False)
    return text


def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[str]:
    """Continues prompts greedily. An answer that does not end within MAX_ANSWER_TOKENS tokens comes back cut."""
    generator: Any = model  # by its annotations, `generate` fits none of the library's own models
    answers: list[str] = []
    for start in range(0, len(prompts), PROMPTS_PER_BATCH):
        batch = prompts[start : start + PROMPTS_PER_BATCH]
        inputs: Any = tokenizer(batch, add_special_tokens=False, padding=True, return_tensors="pt")
        with torch.no_grad():
            output = generator.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def report(directory: Path, dtype: str = "float32", show: int = 0) -> str:
    """Writes one line per figure; with `show`, also that many failures of each."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    lines = [f"Held-out figures of {directory.name} in {dtype}, greedy:"]
    for name, figure in FIGURES.items():
        rng = Random(SEED)
        drawn = [figure.make(rng) for _ in range(figure.samples)]
        prompts = [prompt(tokenizer, conversation, figure.told) for conversation in drawn]
        answers = generate(model, tokenizer, prompts)
        pairs = zip(prompts, drawn, answers, strict=True)
        wrong = [(text, answer) for text, talk, answer in pairs if not figure.right(talk.turns[-1], answer)]
        lines.append(f"{name:50} {1 - len(wrong) / figure.samples:6.1%} of {figure.samples}")
        lines += [f"    > {text}\n    {answer}" for text, answer in wrong[:show]]
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
