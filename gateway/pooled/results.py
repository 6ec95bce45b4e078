"""Has the texts of one request pooled, a bounded number of them at once."""

from collections.abc import Sequence
from contextlib import closing

from gateway.openai.answers.replies import KEEP_ALIVE_S
from gateway.pooled.admission import MAX_TEXTS_AT_ONCE
from gateway.reports.traces import RequestTrace
from gateway.requests.holdings import Holdings
from gateway.requests.reader import AnswerReader
from gateway.requests.request import Request
from gateway.requests.sample import AdmittedPrompt


async def pooled_results(
    holdings: Holdings, prompts: Sequence[AdmittedPrompt], received: float, trace: RequestTrace | None
) -> list[Request]:
    """Returns the requests of all prompts, in order, when they have ended. Raises `APIError` if one fails."""
    requests: list[Request] = []
    for begin in range(0, len(prompts), MAX_TEXTS_AT_ONCE):
        some = prompts[begin : begin + MAX_TEXTS_AT_ONCE]
        opened = await holdings.open(some, received, False, trace)
        await _ended(opened)
        requests += opened
    return requests


async def _ended(requests: Sequence[Request]) -> None:
    streams = [stream for request in requests for stream in request.streams]
    left = len(streams)
    with closing(AnswerReader(streams, KEEP_ALIVE_S)) as reader:
        while left:
            for index in await reader.wait():
                left -= streams[index].unread().finish is not None
