"""Asks for the parameters of docs/api.md that no client's own requests use, and for those that are not supported."""

import re
from typing import Any

from gateway.openai.bodies.parameters import CHAT_PARAMETERS
from tests.e2e.asked.asked import Asked
from tests.e2e.asked.bodies import ASK, FUNCTION, chat, completion
from tests.e2e.harness.forks import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text().split("\n## Parameters\n")[1].split("\n**Messages.**\n")[0]
SUPPORTED_BY_NAME: dict[str, str] = {
    name: supported
    for names, supported in re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    for name in re.findall(r"`([\w.]+)`", names)
}
"""What the page says of each parameter: yes, no, or under which condition."""
UNSUPPORTED = [name for name, supported in SUPPORTED_BY_NAME.items() if supported == "no"]
AB = 'root ::= "a" | "b"'
DRAWN: dict[str, Any] = {"n": 3, "temperature": 2.0, "seed": 3, "return_token_ids": True}


def sent(asked: Asked) -> set[str]:
    """Returns the parameters of a request that are not null; options of streams are named `stream_options.NAME`."""
    body: dict[str, Any] = {name: value for name, value in asked.body.items() if value is not None}
    return {*body, *(f"stream_options.{name}" for name in body.get("stream_options", ()))}


def refused(name: str) -> Asked:
    """Gives an unsupported parameter a value that would change the answer."""
    field, _, inner = name.partition(".")
    make = completion if field not in CHAT_PARAMETERS and not inner else chat
    changed: dict[str, Any] = {field: {inner or "changed": "answer"}}
    return make(f"{name} is refused", status=400, param=name, **changed)


PARAMETERS: list[Asked] = [
    *map(refused, UNSUPPORTED),
    completion("a top_k of one", lambda got: len(set(got.texts)) == 1, top_k=1, **DRAWN),
    completion("a min_p of one", lambda got: len(set(got.texts)) == 1, min_p=1.0, **DRAWN),
    completion(
        "allowed ids",
        lambda got: {token for one in got.choices for token in one["token_ids"]} == {5, 6},
        allowed_token_ids=[5, 6],
        **DRAWN,
    ),
    completion(
        "an id that ends the answer, but not before the third token",
        lambda got: got.ends == ["stop"] and got.choices[0]["token_ids"][2:] == [got.choices[0]["stop_reason"]] == [5],
        logit_bias={"5": 100.0},
        stop_token_ids=[5],
        min_tokens=2,
        return_token_ids=True,
    ),
    completion(
        "a stop string that is shown",
        lambda got: got.texts[0].endswith(" "),
        stop=[" "],
        include_stop_str_in_output=True,
    ),
    completion(
        "special tokens as text",
        lambda got: got.texts == ["<|end|>" * 6],
        logit_bias={"2": 100.0},
        ignore_eos=True,
        skip_special_tokens=False,
    ),
    chat("a guided grammar", lambda got: got.texts[0] in "ab", guided_grammar=AB),
    chat(
        "functions of old",
        lambda got: got.choices[0]["message"]["function_call"]["name"] == "get_weather",
        ASK,
        functions=[FUNCTION],
        function_call={"name": "get_weather"},
        max_tokens=60,
    ),
    chat(
        "a message that goes on, by the names of several servers",
        lambda got: got.texts[0].startswith("Once upon a time"),
        [*ASK, {"role": "assistant", "content": "Once upon a time"}],
        continue_final_message=True,
        add_generation_prompt=False,
        echo=True,
        think=False,
        enable_thinking=False,
        include_reasoning=False,
        verbosity="high",
        repeat_penalty=1.1,
        n_predict=8,
        num_predict=8,
        max_tokens=8,
    ),
    completion(
        "the end of a prompt",
        lambda got: got.usage["prompt_tokens"] == 3,
        truncate_prompt_tokens=3,
        keep_alive="5m",
        cache_prompt=True,
        session_id="mine",
        id_slot=-1,
        num_ctx=4096,
    ),
    chat("a schema by another name", lambda got: got.texts[0] in ("true", "false"), json_schema='{"type": "boolean"}'),
    chat("a regex by another name", lambda got: got.texts[0] == "ab", regex="ab"),
    chat("grammars by other names", lambda got: got.texts[0] in "ab", ebnf=AB, grammar=AB),
    chat(
        "labels, an effort and a salt",
        reasoning_effort="low",
        cache_salt="mine",
        safety_identifier="me",
        prompt_cache_key="this",
    ),
]
