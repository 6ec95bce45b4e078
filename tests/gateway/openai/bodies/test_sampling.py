"""How tokens are drawn and where they end: what a client says is in the job, and what ends an answer is told."""

from typing import Any

import pytest

from contracts.messages.sampling import Sampling
from contracts.scores import MAX_PROMPT_SCORES
from gateway.errors import APIError
from gateway.openai.bodies.sampling import check_prompt
from tests.gateway.running import Running

COMPLETION = "/v1/completions"


async def test_the_job_has_penalties_biases_and_bans(running: Running) -> None:
    asked: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
        "repetition_penalty": 1.25,
        "logit_bias": {"7": -100, "5": 2.5},
        "allowed_token_ids": [9, 8, 9],
        "min_tokens": 2,
        "stop_token_ids": [11],
        "max_tokens": 4,
    }
    assert (await running.chat(**asked)).status_code == 200
    job = running.peer("prefill").jobs[0]
    penalties = job.sampling.presence_penalty, job.sampling.frequency_penalty, job.sampling.repetition_penalty
    assert penalties == (0.5, -1.0, 1.25)
    assert dict(job.sampling.logit_bias) == {7: -100.0, 5: 2.5}
    assert job.sampling.allowed_token_ids == (8, 9) and job.sampling.logprobs is None
    assert job.limits.min_tokens == 2 and job.limits.max_tokens == 4
    assert set(job.limits.stop_token_ids) == {11, *running.tokenizer.stop_ids}
    await running.chat(stop_token_ids=[11], ignore_eos=True, max_tokens=1)
    assert running.peer("prefill").jobs[1].limits.stop_token_ids == (11,)


async def test_bad_words_are_what_they_become_behind_a_space_too(running: Running) -> None:
    encode = running.tokenizer.encode
    await running.chat(bad_words=["fox", "héé"], max_tokens=1)
    found = running.peer("prefill").jobs[0].sampling.bad_words
    assert tuple(encode("fox", special=False)) in found
    assert all(running.tokenizer.decode(list(ids)).strip() in ("fox", "héé") for ids in found)
    same = len(encode(" fox", special=False)) == len(encode("fox", special=False))
    assert (tuple(encode(" fox", special=False)) in found) == same


async def test_what_ended_an_answer(running: Running) -> None:
    running.text = "One. Two! Three?"
    comma = running.tokenizer.encode(".", special=False)[0]
    (choice,) = (await running.chat(stop=["!", "?"])).json()["choices"]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("One. Two", "!")
    (choice,) = (await running.chat(stop="!", include_stop_str_in_output=True)).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("One. Two!", "stop")
    (choice,) = (await running.chat(stop="One", min_tokens=8, max_tokens=60)).json()["choices"]
    assert (choice["message"]["content"], choice["stop_reason"]) == (running.text, None), "it came too early"
    assert comma not in running.tokenizer.stop_ids


async def test_a_stop_token_is_told_and_shown_if_wanted(running: Running) -> None:
    """The peers end with the model's own end, which is the client's here."""
    end = running.tokenizer.stop_ids[0]
    for more, text in (({}, ""), ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "<|im_end|>")):
        body = (await running.post(COMPLETION, prompt="a", max_tokens=60, stop_token_ids=[end], **more)).json()
        (choice,) = body["choices"]
        assert (choice["text"], choice["stop_reason"]) == (running.text + text, end)
    (choice,) = (await running.post(COMPLETION, prompt="a", max_tokens=60)).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def test_a_prompts_log_probabilities_are_bounded() -> None:
    most = MAX_PROMPT_SCORES // 21
    check_prompt(Sampling(seed=0, prompt_logprobs=20), most)
    with pytest.raises(APIError, match=f"{most + 1} tokens with 20 alternatives"):
        check_prompt(Sampling(seed=0, prompt_logprobs=20), most + 1)


@pytest.mark.parametrize(
    "form", [{"structured_outputs": {"json": '{"type": "integer"}'}}, {"guided_choice": ["yes", "no"]}]
)
async def test_forms_of_completions_become_grammars(running: Running, form: dict[str, Any]) -> None:
    assert (await running.post(COMPLETION, prompt="a", **form, max_tokens=1)).status_code == 200
    assert running.peer("prefill").jobs[-1].sampling.grammar.strip()
