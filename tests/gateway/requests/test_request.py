"""Samples that share a job, and the one record of them: without sockets or clocks."""

from typing import Any

import msgspec
import pytest

from contracts.ids import SampleKey, Ticket
from contracts.messages.gateway import Emitted, Stages
from contracts.messages.job import DecodeJob, PrefillJob, Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from contracts.slo import NO_OBJECTIVE, SLO, Objective
from gateway.errors import APIError
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.attempt import Attempt
from gateway.requests.records import finished_record, request_record
from gateway.requests.request import Request
from gateway.requests.sample import ASK_AFTER_S, GIVE_UP_AFTER_S, READD_AFTER_S, AdmittedPrompt, Due, Sample, State
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from infra.redis.records import FinishedRecord
from pricing.routes.route import Route
from tests.scores import scores_of

P, D = "prefill", "decode"
BOTH = Route(P, D)


def request_of(samples: int, prompt_logprobs: int | None = None, objective: Objective = NO_OBJECTIVE) -> Request:
    metrics = Metrics("m", [])
    sampling = Sampling(1, prompt_logprobs=prompt_logprobs)
    prompt = AdmittedPrompt(
        Prompt([5, 6, 7], 3, "ab" * 16, 3), sampling, Limits(100), samples=samples, objective=objective
    )

    def stream(number: int) -> Stream:
        sample = Sample(SampleKey("r-1", number), prompt, 100.0)
        return Stream(sample, BytePieces(chr).stream(), 0.0, False, metrics)

    return Request([stream(number) for number in range(samples)])


def begun(samples: int = 3, objective: Objective = NO_OBJECTIVE) -> tuple[Request, Attempt]:
    request = request_of(samples, objective=objective)
    attempt = request.begin(request.samples, BOTH, 0.0)
    attempt.add(0.0, Ticket(1, 0))
    return request, attempt


def say(request: Request, sample: int, at: float, tokens: int = 1, finish: Finish | None = None, **more: Any) -> None:
    """New tokens of a sample, from the worker that its attempt is with."""
    stream = request.streams[sample]
    index = len(stream.sample.tokens)
    ids = list(range(65 + index, 65 + index + tokens))
    fresh = stream.sample.emitted(D, Emitted(stream.sample.attempt_key, index, ids, finish, **more), at)
    assert fresh is not None
    stream.take(fresh, at)


def end(request: Request, sample: int, state: State, reason: str) -> None:
    request.samples[sample].end(state, reason)


def test_the_first_job_is_for_all_samples() -> None:
    request, attempt = begun()
    job = request.job(attempt, "g", "tcp://d", 50.0)
    assert (job.samples, job.attempt) == ((0, 1, 2), 1)
    assert job.prompt == Prompt([5, 6, 7], 3, "ab" * 16, 3)
    assert isinstance(job, PrefillJob)
    assert (job.decode_epoch, job.decode_address, job.receiver, job.sender) == (D, "tcp://d", P, "g")
    assert (job.deadline, job.queued_at) == (request.samples[0].deadline + 50, request.queued_at + 50)


def test_a_route_without_a_prefill_worker_is_a_job_for_the_decode_worker() -> None:
    request = request_of(1)
    job = request.job(request.begin(request.samples, Route("", D), 0.0), "g", "", 50.0)
    assert isinstance(job, DecodeJob) and job.receiver == D


def test_a_job_that_was_taken_is_taken_for_all() -> None:
    request, _ = begun()
    assert not request.started("stranger", 1, 1.0) and not request.started(P, 2, 1.0)
    assert request.started(P, 1, 1.0)
    assert {sample.state for sample in request.samples} == {State.PREFILL}
    assert {sample.heard for sample in request.samples} == {1.0}


def test_one_samples_tokens_show_that_the_job_was_taken() -> None:
    request, _ = begun()
    say(request, 1, 0.5)
    assert [sample.due(READD_AFTER_S) for sample in request.samples] == [None] * 3
    assert [sample.due(ASK_AFTER_S) for sample in request.samples] == [Due.ASK, None, Due.ASK]


def test_silence_is_of_one_sample() -> None:
    request, _ = begun()
    request.started(P, 1, 0.0)
    say(request, 1, GIVE_UP_AFTER_S - 1)
    assert [sample.due(GIVE_UP_AFTER_S) for sample in request.samples] == [Due.RETRY, None, Due.RETRY]


def test_a_retry_is_a_job_of_its_own_with_a_number_of_its_own() -> None:
    request, first = begun()
    request.started(P, 1, 1.0)
    say(request, 1, 1.0, tokens=2)
    for sample, number in ((1, 2), (2, 3)):
        request.samples[sample].abandon()
        attempt = request.begin([request.samples[sample]], BOTH, 2.0)
        assert attempt.number == number
    assert request.trying(first) == [request.samples[0]]
    second = request.samples[1].attempt
    assert second is not None
    job = request.job(second, "g", "tcp://d", 50.0)
    assert (job.samples, job.attempt, job.prompt) == ((1,), 2, Prompt([5, 6, 7, 65, 66], 3, "ab" * 16, 3))
    assert request.started(P, 2, 3.0)
    states = [sample.state for sample in request.samples]
    assert states == [State.PREFILL, State.PREFILL, State.QUEUED], "`Started` names one job"


def test_prompt_scores_are_asked_for_until_one_sample_has_them() -> None:
    request = request_of(2, prompt_logprobs=2)
    attempts = [request.begin([sample], BOTH, 0.0) for sample in request.samples]

    def wanted(sample: int) -> int | None:
        return request.job(attempts[sample], "g", "tcp://d", 50.0).sampling.prompt_logprobs

    say(request, 1, 1.0)
    assert (wanted(0), wanted(1)) == (2, None), "they come with a first token, and sample 1 has had its own"
    assert request.prompt_scores is None
    say(request, 0, 1.0, prompt_scores=scores_of([6, 7]))
    assert (wanted(0), wanted(1)) == (None, None)
    assert request.prompt_scores == scores_of([6, 7])


def test_what_is_added_again_is_for_those_that_still_try_it() -> None:
    request, attempt = begun()
    request.samples[0].abandon()
    end(request, 1, State.CANCELLED, "client gone")
    assert request.job(attempt, "g", "tcp://d", 50.0).samples == (2,)


@pytest.mark.parametrize(
    ("ends", "outcome", "reason"),
    [
        (["stop", "stop", "stop"], "finished", "stop"),
        (["stop", "length", "stop"], "finished", "length"),
        (["stop", "client gone", "client gone"], "cancelled", "client gone"),
        (["client gone", "stop", "handoff"], "failed", "handoff"),
    ],
)
def test_the_record_has_the_gravest_end(ends: list[str], outcome: str, reason: str) -> None:
    request, _ = begun()
    for sample, one in enumerate(ends):
        say(request, sample, 1.0)
        finished = State.FINISHED if one in ("stop", "length") else State.FAILED
        end(request, sample, State.CANCELLED if one == "client gone" else finished, one)
    assert request.ended
    record = finished_record(request, "m", SLO(2000, 100), 2.0, 1000.0)
    assert (record.outcome, record.reason, record.good) == (outcome, reason, outcome == "finished")


@pytest.mark.parametrize(
    ("status", "tokens", "outcome"),
    [(429, 0, "refused"), (503, 0, "refused"), (503, 1, "failed"), (504, 0, "failed"), (500, 0, "failed")],
)
def test_only_a_request_that_nobody_began_to_answer_was_refused(status: int, tokens: int, outcome: str) -> None:
    request, _ = begun()
    for number, stream in enumerate(request.streams):
        if tokens:
            say(request, number, 1.0)
        stream.fail(APIError(status, "why", code="why"))
        end(request, number, State.FAILED, "why")
    record = finished_record(request, "m", SLO(2000, 100), 2.0, 1000.0)
    assert (record.outcome, record.reason, record.good) == (outcome, "why", False)


@pytest.mark.parametrize(
    ("wanted", "judged_by"),
    [
        (NO_OBJECTIVE, Objective(2000.0, 100.0)),
        (Objective(tpot_ms=20.0), Objective(None, 20.0)),
        (Objective(500.0, 20.0), Objective(500.0, 20.0)),
    ],
)
def test_the_record_says_which_objective_it_was_judged_by(wanted: Objective, judged_by: Objective) -> None:
    request, _ = begun(1, wanted)
    say(request, 0, 1.0)
    end(request, 0, State.FINISHED, "stop")
    record = finished_record(request, "m", SLO(2000, 100), 2.0, 1000.0)
    assert msgspec.json.decode(msgspec.json.encode(record), type=FinishedRecord).objective == judged_by


def test_a_request_is_as_good_as_its_worst_sample() -> None:
    request, _ = begun(2)
    say(request, 0, 1.0)
    say(request, 1, 1.2)
    say(request, 0, 1.5, tokens=5, finish="stop")  # 100 ms each
    say(request, 1, 1.6, tokens=8, finish="stop")  # 50 ms each
    for sample in request.samples:
        sample.stages = Stages(queue_ms=1.0, prefill_ms=2.0, handoff_bytes=4096, cached_tokens=2)
        sample.end(State.FINISHED, "stop")

    def good(ttft: float, tpot: float) -> bool:
        return finished_record(request, "m", SLO(ttft, tpot), 2.0, 1000.0).good

    record = finished_record(request, "m", SLO(1, 1), 2.0, 1000.0)
    assert (record.ttft_ms, record.e2e_ms) == (1200.0, 1600.0)
    assert record.tpot_ms == pytest.approx(100.0)
    assert (record.prompt_tokens, record.output_tokens, record.samples, record.attempts) == (3, 15, 2, 1)
    assert (record.handoff_bytes, record.cached_tokens) == (4096, 2), "the prompt is computed and passed once"
    assert good(1200.1, 100.1) and not good(1199.9, 100.1) and not good(1200.1, 99.9)


def test_a_request_in_progress_is_where_its_least_advanced_sample_is() -> None:
    request, _ = begun()
    request.started(P, 1, 1.0)
    say(request, 0, 1.0, tokens=4)
    end(request, 0, State.FINISHED, "stop")
    say(request, 1, 1.0, tokens=2)
    record = request_record(request, 1.0, {})
    assert (record.state, record.output_tokens, record.prompt_tokens) == ("prefill", 6, 3)
