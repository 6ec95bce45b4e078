"""/tokenize, /detokenize, /tokenizer_info: vLLM's fields, the ids of the requests themselves, and bounds."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lm_eval.utils import RemoteTokenizer, check_remote_tokenizer_support

from gateway.openai.tokens import MAX_TOKENS_PER_REQUEST
from tests.gateway.models import CONTEXT_TOKENS, llama_style
from tests.gateway.running import Running, Serve

TEXT = "Hello, world! 🙂 <|im_end|>"
CHAT = [{"role": "user", "content": TEXT}]


@pytest.mark.parametrize("base", ["", "/v1"])
async def test_a_texts_ids_are_those_of_a_completion_and_come_back_as_the_text(running: Running, base: str) -> None:
    told = (await running.post(f"{base}/tokenize", prompt=TEXT, return_token_strs=True)).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] == CONTEXT_TOKENS
    await running.post("/v1/completions", prompt=TEXT)
    assert running.peer("prefill").jobs[0].prompt.token_ids == told["tokens"]
    back = (await running.post(f"{base}/detokenize", tokens=told["tokens"])).json()
    assert back == {"prompt": TEXT}
    assert told["token_strs"][-1] == "<|im_end|>"
    assert (await running.post("/tokenize", prompt=TEXT)).json()["token_strs"] is None


async def test_a_chats_ids_are_those_of_a_chat(running: Running) -> None:
    told = (await running.post("/tokenize", messages=CHAT, model="tiny")).json()
    await running.post("/v1/chat/completions", messages=CHAT)
    assert running.peer("prefill").jobs[0].prompt.token_ids == told["tokens"]
    back = (await running.post("/detokenize", tokens=told["tokens"])).json()["prompt"]
    assert back == f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    bare = (await running.post("/tokenize", messages=CHAT, add_generation_prompt=False)).json()["tokens"]
    assert bare == told["tokens"][: len(bare)]
    assert (await running.post("/detokenize", tokens=bare)).json()["prompt"] == f"<|im_start|>user\n{TEXT}<|im_end|>\n"


async def test_special_tokens_around_a_text_are_there_unless_they_are_refused(serve: Serve, tmp_path: Path) -> None:
    running = await serve("decode", at=llama_style(tmp_path / "llama"))
    with_them = (await running.post("/tokenize", prompt="Hello")).json()["tokens"]
    assert (await running.post("/tokenize", prompt="Hello", add_special_tokens=True)).json()["tokens"] == with_them
    without = (await running.post("/tokenize", prompt="Hello", add_special_tokens=False)).json()["tokens"]
    assert with_them[1:] == without and (await running.post("/detokenize", tokens=with_them[:1])).json() == {
        "prompt": "<s>"
    }


async def test_a_text_may_be_longer_than_the_context(running: Running) -> None:
    told = (await running.post("/tokenize", prompt="z" * 5000, return_token_strs=True)).json()
    assert told["count"] == 5000 > told["max_model_len"]
    assert (await running.post("/detokenize", tokens=told["tokens"])).json()["prompt"] == "z" * 5000


async def test_lm_eval_finds_a_tokenizer_here(running: Running) -> None:
    url = f"{running.url}/v1/completions"
    ids = (await running.post("/tokenize", prompt=TEXT, add_special_tokens=False)).json()["tokens"]

    def ask() -> None:
        assert check_remote_tokenizer_support(url)
        remote = RemoteTokenizer(url)
        assert remote.encode(TEXT) == ids and remote.batch_decode([ids]) == [TEXT]
        assert (remote.eos_token, remote.eos_token_id) == ("<|im_end|>", ids[-1])
        assert remote.apply_chat_template(CHAT) == f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"

    await asyncio.to_thread(ask)
    info = (await running.client.get("/v1/tokenizer_info")).json()
    assert info["added_tokens_decoder"][str(ids[-1])] == {"content": "<|im_end|>", "special": True}


BAD: dict[str, tuple[str, dict[str, Any], int, str, str | None]] = {
    "nothing": ("/tokenize", {}, 400, "missing_required_parameter", "prompt"),
    "both": ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "conflicting_parameters", "messages"),
    "ids": ("/tokenize", {"prompt": [1, 2]}, 400, "invalid_type", "prompt"),
    "another model": ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model_not_found", "model"),
    "a template": ("/tokenize", {"messages": CHAT, "chat_template": "x"}, 400, "unknown_parameter", "chat_template"),
    "half a message": (
        "/tokenize",
        {"messages": [{"role": "user"}]},
        400,
        "missing_required_parameter",
        "messages[0].content",
    ),
    "too long": ("/tokenize", {"prompt": "z" * (MAX_TOKENS_PER_REQUEST + 1)}, 400, "context_length_exceeded", "prompt"),
    "an unknown id": ("/detokenize", {"tokens": [5, 443]}, 400, "invalid_token_id", "tokens"),
    "a negative id": ("/detokenize", {"tokens": [-1]}, 400, "invalid_value", "tokens[0]"),
    "a text": ("/detokenize", {"tokens": "abc"}, 400, "invalid_type", "tokens"),
    "too many ids": ("/detokenize", {"tokens": [1] * (MAX_TOKENS_PER_REQUEST + 1)}, 400, "too_many_values", None),
}


@pytest.mark.parametrize("row", BAD)
async def test_what_is_wrong_is_named(running: Running, row: str) -> None:
    path, body, status, code, param = BAD[row]
    answer = await running.post(path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert error["param"] == param


NOT_HERE = {
    "/v1/embeddings": "embeddings",
    "/v1/images/generations": "images",
    "/v1/audio/speech": "audio",
    "/v1/files/file-1/content": "files",
    "/v1/moderations": "moderations",
    "/v1/fine_tuning/jobs": "fine-tuning",
    "/v1/batches": "batches",
    "/v1/assistants": "assistants",
    "/v2/rerank": "reranking",
    "/score": "scoring of texts",
    "/v1/responses/compact": "compacting of conversations",
    "/v1/chat/completions/batch": "batches of chats",
    "/v1/chat/completions/render": "rendering of prompts",
    "/v1/completions/render": "rendering of prompts",
    "/v1/chat/completions/chatcmpl-1": "stored chat completions",
    "/completion": "llama.cpp's completions",
    "/props": "llama.cpp's properties",
}


OTHER_METHODS = ("/v1/responses/compact", "/v1/embeddings", "/v2/rerank", "/score")
"""Paths that might be the id of a stored response, or that other models answer: another method is refused as such."""


@pytest.mark.parametrize("path", NOT_HERE)
async def test_what_is_not_offered_is_said_by_name(running: Running, path: str) -> None:
    answers = [await running.post(path, input="a"), await running.post(f"{path}/", input="a")]
    if path not in OTHER_METHODS:
        answers.append(await running.client.get(path))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_offered")
        assert f"does not offer {NOT_HERE[path]}" in answer.json()["error"]["message"]
