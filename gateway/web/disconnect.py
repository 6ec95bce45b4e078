"""Ends work for a client as soon as the client is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from infra.process.ending import end
from infra.process.tasks import child

T = TypeVar("T")


class ClientGone(Exception):
    """The connection was closed from the other side."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. When the client goes, cancels the work and raises `ClientGone`.

    A late result of `work` is dropped: it must own nothing (`gateway.requests.holdings` does).
    """
    task, gone = child(work), child(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await end((task, gone))
        await asyncio.gather(task, gone, return_exceptions=True)  # so that asyncio reports no late error


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
