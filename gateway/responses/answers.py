"""Shapes an answer as the Responses API does: its events from parts, and the whole from the same."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from contracts.messages.sampling import Finish
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    EndedEarly,
    Event,
    Failed,
    Failure,
    Incomplete,
    InProgress,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseAnswer,
    TextDelta,
    TextDone,
    Usage,
)
from gateway.responses.items import (
    FunctionCallItem,
    Logprob,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)


class ResponseShape:
    """Makes the items of one response out of its answer's parts, one after the other.

    `whole` is what the events add up to, because it is put together from the same items.
    """

    def __init__(self, request: str, response: ResponseAnswer) -> None:
        """`request` is the request's id; `response` has no output yet."""
        self._request = request
        self._response = response
        self._items: list[OutputItem] = []
        self._pieces: list[str] = []  # of the last item: its text, thoughts or arguments
        self._logprobs: list[Logprob] = []  # … of this text
        self._open = False  # whether the last item goes on
        self._events = 0  # that were made

    def begin(self) -> Sequence[Event]:
        """Returns the events before everything else."""
        return self._numbered([Created(response=self._response), InProgress(response=self._response)])

    def take(self, parts: Iterable[Part], logprobs: Sequence[Logprob] = ()) -> Sequence[Event]:
        """Returns the events of these parts, often none; log-probabilities are those of the text among them."""
        fresh = list(logprobs)
        events: list[Event] = []
        for part in parts:
            for event in self._taken(part):
                if isinstance(event, TextDelta):
                    self._logprobs += fresh
                    event.logprobs, fresh = fresh, []
                events.append(event)
        return self._numbered(events)

    def end(self, finish: Finish) -> Sequence[Event]:
        """Returns the events that end what is open; `ended` is still to come."""
        return self._numbered(self._closed(_status(finish)))

    def whole(self, finish: Finish, usage: Usage) -> ResponseAnswer:
        """Returns the whole response, when all of its parts were taken."""
        cut = finish == "length"
        list(self._closed(_status(finish)))
        return structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            incomplete_details=Incomplete() if cut else None,
            completed_at=None if cut else int(time.time()),
            output=self._items,
            usage=usage,
        )

    def ended(self, response: ResponseAnswer) -> Sequence[Event]:
        """Returns the very last event, with the whole response."""
        kind = EndedEarly if response.status == "incomplete" else Completed
        return self._numbered([kind(response=response)])

    def failed(self, code: str, message: str) -> Sequence[Event]:
        """Returns the last event of a stream that has failed. An item that was not done is left out."""
        done = self._items[:-1] if self._open else self._items
        failure = Failure(code=code, message=message)
        response = structs.replace(self._response, status="failed", error=failure, output=done)
        return self._numbered([Failed(response=response)])

    def _taken(self, part: Part) -> Iterator[Event]:
        match part:
            case Content("") | Reasoning("") | CallArguments(_, ""):
                return
            case Content(text):
                if not (self._open and isinstance(self._items[-1], MessageItem)):
                    yield from self._begun(MessageItem(role="assistant", content=[]), "msg")
                    yield PartAdded(**self._place(), part=OutputText(text="", logprobs=[]))
                self._pieces.append(text)
                yield TextDelta(**self._place(), delta=text)
            case Reasoning(text):
                if not (self._open and isinstance(self._items[-1], ReasoningItem)):
                    yield from self._begun(ReasoningItem(content=[]), "rs")
                    yield PartAdded(**self._place(), part=ReasoningText(text=""))
                self._pieces.append(text)
                yield ReasoningDelta(**self._place(), delta=text)
            case CallBegins(number, name):
                call = FunctionCallItem(call_id=f"call_{self._request}_{number}", name=name, arguments="")
                yield from self._begun(call, "fc")
            case CallArguments(_, text):
                assert self._open and isinstance(self._items[-1], FunctionCallItem), "arguments follow their call"
                self._pieces.append(text)
                yield ArgumentsDelta(**self._place(), delta=text)

    def _begun(self, item: OutputItem, kind: str) -> Iterator[Event]:
        yield from self._closed("completed")
        item.id, item.status = f"{kind}_{self._request}_{len(self._items)}", "in_progress"
        self._items.append(item)
        self._open = True
        yield ItemAdded(output_index=len(self._items) - 1, item=structs.replace(item))

    def _closed(self, status: Status) -> Iterator[Event]:
        """Ends the item that is open, if one is, and keeps what it has become."""
        if not self._open:
            return
        item, text = self._items[-1], "".join(self._pieces)
        place = self._place()
        match item:
            case MessageItem():
                written = OutputText(text=text, logprobs=self._logprobs)
                item.content = [written]
                yield TextDone(**place, text=text, logprobs=self._logprobs)
                yield PartDone(**place, part=written)
            case ReasoningItem():
                thought = ReasoningText(text=text)
                item.content = [thought]
                yield ReasoningDone(**place, text=text)
                yield PartDone(**place, part=thought)
            case FunctionCallItem():
                item.arguments = text
                yield ArgumentsDone(**place, name=item.name, arguments=text)
        item.status = status
        self._pieces, self._logprobs, self._open = [], [], False
        yield ItemDone(output_index=len(self._items) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        """Returns what names the last item in events."""
        return {"output_index": len(self._items) - 1, "item_id": self._items[-1].id}

    def _numbered(self, events: Iterable[Event]) -> Sequence[Event]:
        numbered = list(events)
        for event in numbered:
            event.sequence_number = self._events
            self._events += 1
        return numbered


def _status(finish: Finish) -> Status:
    return "incomplete" if finish == "length" else "completed"
