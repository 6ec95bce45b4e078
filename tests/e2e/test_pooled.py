"""Vectors and scores of a whole system: the formula over transformers' states, in every form that clients ask for."""

import base64
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import ollama
import openai
import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from tests.e2e.harness.system import System
from tests.e2e.test_api_page import assert_runs, endpoints_of, examples, examples_of
from tests.embedding_models import last_token_model, saved
from tests.gateway.models import word_pieces
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S, wait_until

MAX_DIFFERENCE = 1e-4  # see `tests/engine/test_pooling.py`
TEXTS = ["The quick brown fox jumps over the lazy dog.", "Baton passes blocks.", "É, ü and 漢字"]


class Served(NamedTuple):
    """A system, its model by transformers, and the model's tokenizer."""

    system: System
    model: Any
    tokenizer: Tokenizer

    def expected(self, ids: list[int]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            last = self.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        found: np.ndarray[Any, Any] = functional.normalize(last, dim=0).numpy()
        return found

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.system.gateway_url}{path}", json=body, verify=PLAIN, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A prefill and a decode worker, of which the first computes texts while it lives."""
    directory = tmp_path_factory.mktemp("model") / "vectors"
    model = last_token_model(directory)
    worker = ("--dtype", "fp32", "--kv-memory", "4MiB", "--max-batch-tokens", "24")
    names = ("--served-model-name", "baton-vectors")
    with System(tmp_path_factory.mktemp("system"), directory, worker=worker, gateway=names) as system:
        yield Served(system, model, Tokenizer.from_file(str(directory / "tokenizer.json")))


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.DefaultHttpxClient(verify=PLAIN) as plain:
        yield openai.OpenAI(
            base_url=f"{served.system.gateway_url}/v1", api_key="none", max_retries=0, http_client=plain
        )


def test_openais_client_reads_numbers_and_base64(served: Served, client: openai.OpenAI) -> None:
    expected = [served.expected(served.ids(text)) for text in TEXTS]
    numbers = client.embeddings.create(model="baton-vectors", input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model="baton-vectors", input=TEXTS)  # the client asks for base64 by itself
    given = client.embeddings.create(model="baton-vectors", input=[served.ids(text) for text in TEXTS])
    for answer in (numbers, packed, given):
        assert [one.index for one in answer.data] == [0, 1, 2]
        np.testing.assert_allclose([one.embedding for one in answer.data], expected, atol=MAX_DIFFERENCE)
        tokens = sum(len(served.ids(text)) for text in TEXTS)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    raw = served.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(raw), "<f4").tolist() == packed.data[0].embedding
    short = client.embeddings.create(model="baton-vectors", input=TEXTS[0], dimensions=8).data[0].embedding
    first = expected[0][:8]
    np.testing.assert_allclose(short, first / np.linalg.norm(first), atol=10 * MAX_DIFFERENCE)


def test_many_texts_keep_their_order(served: Served) -> None:
    """More texts than are in progress at once, several in a step, with shared beginnings that the cache knows."""
    texts = [f"{TEXTS[number % 3]} {number}" for number in range(150)]
    answer = served.post("/v1/embeddings", input=texts)
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(150))
    expected = [served.expected(served.ids(text)) for text in texts]
    np.testing.assert_allclose([one["embedding"] for one in data], expected, atol=MAX_DIFFERENCE)
    records = served.system.finished()[-150:]
    assert {(record.outcome, record.output_tokens) for record in records} == {("finished", 0)}
    assert sum(record.prompt_tokens for record in records) == answer.json()["usage"]["prompt_tokens"]


def test_long_texts_are_refused_or_cut(served: Served) -> None:
    long = " ".join(TEXTS) * 4
    ids = served.ids(long)
    assert len(ids) > 64
    refused = served.post("/v1/embeddings", input=[TEXTS[0], long])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "64 tokens" in error["message"]
    for most, kept in ((10, 10), (-1, 64)):
        answer = served.post("/v1/embeddings", input=long, truncate_prompt_tokens=most).json()
        assert answer["usage"]["prompt_tokens"] == kept
        expected = served.expected([*ids[: kept - 1], ids[-1]])  # the end of the text is left out, and not its mark
        np.testing.assert_allclose(answer["data"][0]["embedding"], expected, atol=MAX_DIFFERENCE)
    given = served.post("/v1/embeddings", input=ids, truncate_prompt_tokens=7).json()
    np.testing.assert_allclose(given["data"][0]["embedding"], served.expected(ids[:7]), atol=MAX_DIFFERENCE)


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/embeddings", {}, "missing_required_parameter", "input"),
    ("/v1/embeddings", {"input": 3}, "invalid_type", "input"),
    ("/v1/embeddings", {"input": []}, "invalid_value", "input"),
    ("/v1/embeddings", {"input": [[]]}, "empty_prompt", "input"),
    ("/v1/embeddings", {"input": ["a", 1]}, "invalid_value", "input"),
    ("/v1/embeddings", {"input": ["a"] * 2049}, "invalid_value", "input"),
    ("/v1/embeddings", {"input": [100000]}, "invalid_token_id", "input"),
    ("/v1/embeddings", {"input": "a", "dimensions": 33}, "invalid_value", "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ("/v1/embeddings", {"input": "a", "temperature": 1}, "unknown_parameter", "temperature"),
    ("/v1/embeddings", {"input": "a", "model": "other"}, "model_not_found", "model"),
    ("/v1/rerank", {"query": "a", "documents": []}, "invalid_value", "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["b " * 99]}, "context_length_exceeded", "documents"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "conflicting_parameters", "text_1"),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), WRONG)
def test_what_is_wrong_is_named(served: Served, path: str, body: dict[str, Any], code: str, param: str) -> None:
    error = served.post(path, **body).json()["error"]
    assert (error["code"], error["param"]) == (code, param), error


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat"]
)
def test_a_model_of_vectors_refuses_chats_by_name(served: Served, path: str) -> None:
    messages = [{"role": "user", "content": "Hi!"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Hi!"},
        "/v1/messages": {"messages": messages, "max_tokens": 3, "model": "baton-vectors"},
        "/v1/responses": {"input": "Hi!"},
        "/api/chat": {"messages": messages, "model": "baton-vectors"},
    }
    answer = served.post(path, **bodies.get(path, {"messages": messages}))
    assert answer.status_code == 404 and "use /v1/embeddings" in answer.text and "not_offered" in answer.text


def test_documents_are_ranked_by_the_cosine_of_vectors(served: Served) -> None:
    query, documents = "a fox", [*TEXTS, "a fox"]
    first = served.expected(served.ids(query))
    expected = [float(first @ served.expected(served.ids(text))) for text in documents]
    ranked = served.post("/v1/rerank", query=query, documents=[{"text": documents[0]}, *documents[1:]], top_n=3).json()
    order = sorted(range(4), key=lambda index: -expected[index])[:3]
    assert [one["index"] for one in ranked["results"]] == order and order[0] == 3
    assert [one["document"] for one in ranked["results"]] == [{"text": documents[index]} for index in order]
    scores = served.post("/score", text_1=query, text_2=documents).json()
    assert [one["index"] for one in scores["data"]] == [0, 1, 2, 3]
    np.testing.assert_allclose([one["score"] for one in scores["data"]], expected, atol=MAX_DIFFERENCE)
    found = [one["relevance_score"] for one in ranked["results"]]
    np.testing.assert_allclose(found, sorted(expected)[::-1][:3], atol=MAX_DIFFERENCE)
    assert scores["usage"]["prompt_tokens"] == sum(len(served.ids(text)) for text in documents)


def test_ollamas_client_embeds(served: Served) -> None:
    client = ollama.Client(served.system.gateway_url, timeout=DEADLINE_S, verify=PLAIN)
    with closing(client._client):
        _embeds(served, client)


def _embeds(served: Served, client: ollama.Client) -> None:
    expected = [served.expected(served.ids(text)) for text in TEXTS]
    found = client.embed("baton-vectors:latest", TEXTS)
    np.testing.assert_allclose(np.array(found.embeddings), expected, atol=MAX_DIFFERENCE)
    assert found.prompt_eval_count == sum(len(served.ids(text)) for text in TEXTS)
    older = client.embeddings("baton-vectors", TEXTS[0])
    np.testing.assert_allclose(np.array(older.embedding), expected[0], atol=MAX_DIFFERENCE)
    assert client.embed("baton-vectors", "a " * 99).prompt_eval_count == 64
    with pytest.raises(ollama.ResponseError, match="64 tokens"):
        client.embed("baton-vectors", "a " * 99, truncate=False)
    assert client.show("baton-vectors").capabilities == ["embedding"]


def test_every_endpoint_of_such_a_model_has_an_example(served: Served) -> None:
    shown = {endpoint for place in examples_of("texts") for endpoint in examples()[place].endpoints}
    assert shown <= endpoints_of(served.system)
    assert {path for path in endpoints_of(served.system) if re.search("embed|rerank|score", path)} == shown


@pytest.mark.parametrize("number", examples_of("texts"))
def test_the_example_runs(served: Served, number: int, tmp_path: Path) -> None:
    assert_runs(served.system, number, tmp_path)


def test_an_encoders_classifier_ranks_documents(tmp_path: Path) -> None:
    """One worker, BERT by transformers' code: pairs are tokenized, told apart by types, and scored as there."""
    directory = word_pieces(tmp_path / "reranker")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_labels=1,
    )
    model = saved(directory, AutoModelForSequenceClassification.from_config(config))
    query, documents = "a quick fox?", [*TEXTS, "The fox", "over 1234567890"]
    with torch.inference_mode():
        logits = [model(**tokenizer(query, each, return_tensors="pt")).logits[0, 0] for each in documents]
    expected = torch.sigmoid(torch.stack(logits)).tolist()
    with System(tmp_path, directory, prefill=0, worker=("--dtype", "fp32")) as system:
        asked = {"query": query, "documents": documents}
        answer = httpx.post(f"{system.gateway_url}/v1/rerank", json=asked, verify=PLAIN, timeout=DEADLINE_S).json()
    assert [one["index"] for one in answer["results"]] == sorted(range(5), key=lambda index: -expected[index])
    found = [one["relevance_score"] for one in answer["results"]]
    np.testing.assert_allclose(found, sorted(expected, reverse=True), atol=MAX_DIFFERENCE)


def test_texts_of_a_dead_worker_go_to_another(served: Served) -> None:
    """The worker that has the texts is stopped with them, and then killed. The last test: a worker is missing then."""
    system, texts = served.system, TEXTS * 4
    process = system.workers["prefill-0"]
    os.kill(process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(served.post, "/v1/embeddings", input=texts)
        wait_until(lambda: any(map(system.store.xlen, system.store.scan_iter("baton:jobs:*"))), "the jobs")
        system.kill("prefill-0")
        data = asked.result(DEADLINE_S).json()["data"]
    expected = [served.expected(served.ids(text)) for text in texts]
    np.testing.assert_allclose([one["embedding"] for one in data], expected, atol=MAX_DIFFERENCE)
