"""Takes the marks of load generators' runs, which the dashboard shows in its charts."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.bodies.parsing import converted, json_object
from gateway.web.endpoint import Endpoint
from gateway.web.serving import Serving, reply

RunText = Annotated[str, Meta(min_length=1, max_length=64)]


class LoadRunBody(Struct, frozen=True):
    """A mark that a run of a load begins, or with `ended` that it has ended; `run` is the same both times."""

    run: RunText
    name: RunText
    ended: bool = False


class LoadRunNoted(Struct, frozen=True):
    """The answer to a mark that was taken."""

    run: str


def endpoints(serving: Serving) -> list[Endpoint]:
    async def note(request: Request) -> Response:
        body = await serving.read(
            request, lambda written, unknown: converted(json_object(written), LoadRunBody, unknown)
        )
        serving.gateway.mark_run(body.run, body.name, body.ended)
        return reply(LoadRunNoted(body.run))

    summary = "Notes the beginning or the end of a measured load, for the dashboard's charts."
    return [Endpoint("POST", "/load_runs", note, summary, LoadRunBody, answer=LoadRunNoted)]
