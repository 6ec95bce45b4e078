"""A reranker behind a gateway: its results are scores, and they are asked of one worker, again if that fails."""

from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from contracts.messages.job import AnyJob, DecodeJob
from contracts.pooling import Pooling
from tests.gateway.models import byte_level
from tests.gateway.running import Running, Serve

DOCUMENTS = ["a fox", "the lazy dog", "a fox and a dog"]


def of_length(job: AnyJob) -> bytes:
    """A result that a shorter prompt has higher."""
    return pack("<f", 1 / len(job.prompt.token_ids))


async def reranker(serve: Serve, tmp_path: Path, pooling: Pooling, **faults: Any) -> Running:
    running = await serve(at=byte_level(tmp_path / "tiny", max_position_embeddings=999))
    for role in ("prefill", "decode"):
        await running.add(role, pooling=pooling, pools=of_length, **(faults if role == "prefill" else {}))
    return running


@pytest.mark.parametrize("faults", [{}, {"fails": "engine"}])
async def test_a_reranker(serve: Serve, tmp_path: Path, faults: dict[str, Any]) -> None:
    running = await reranker(serve, tmp_path, Pooling("score", "last", tokens=(67, 68)), **faults)
    answer = (await running.post("/v1/rerank", query="a fox?", documents=DOCUMENTS, return_documents=False)).json()
    jobs = [job for peer in running.peers for job in peer.jobs]
    assert {type(job) for job in jobs} == {DecodeJob}
    assert len(running.peer("prefill").jobs) == 3 and len(running.peer("decode").jobs) == (3 if faults else 0)
    lengths = {len(job.prompt.token_ids) for job in jobs}
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted((unpack("<f", pack("<f", 1 / length))[0] for length in lengths), reverse=True)
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]
    assert "document" not in answer["results"][0]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    assert "<Document>: the lazy dog" in running.tokenizer.written(running.peer("prefill").jobs[1].prompt.token_ids)
    refused = await running.post("/v1/embeddings", input="a")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_offered")
    assert "/v1/rerank" in refused.json()["error"]["message"]
    chat = await running.chat()
    assert (chat.status_code, chat.json()["error"]["code"]) == (404, "not_offered")
    await running.idle()


async def test_without_a_worker_nobody_knows_what_the_model_is_made_for(serve: Serve) -> None:
    running = await serve()
    answer = await running.post("/v1/embeddings", input="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_workers")


async def test_a_failure_is_the_clients_error(serve: Serve, tmp_path: Path) -> None:
    running = await reranker(serve, tmp_path, Pooling("embed", "last", width=1), fails="engine", retryable=False)
    answer = await running.post("/v1/embeddings", input=["a", "b"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine")
    await running.idle()
