"""Shapes an answer as the Responses API does: a stream of events, and the whole response."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from contracts.messages.sampling import Finish
from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning
from gateway.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    Event,
    IncompleteDetails,
    ItemAdded,
    ItemDone,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseAnswer,
    ResponseBegun,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseUsage,
)
from gateway.responses.items import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    TextLogprob,
)
from gateway.shaping.items import ItemShape


class ResponseShape(ItemShape[OutputItem, Event]):
    """Output items and events of one response. The whole response has exactly the items that its events describe."""

    def __init__(self, request: str, response: ResponseAnswer) -> None:
        """`request` is the request's id; `response` has no output yet."""
        super().__init__()
        self._request = request
        self._response = response
        self._new_scores: Sequence[TextLogprob] = ()  # log-probabilities that no event has yet
        self._scores: list[TextLogprob] = []  # log-probabilities of the open text
        self._events = 0  # number of events so far

    def begin(self) -> Sequence[Event]:
        return self._numbered([ResponseCreated(response=self._response), ResponseBegun(response=self._response)])

    def take(self, parts: Iterable[Part], logprobs: Sequence[TextLogprob] = ()) -> Sequence[Event]:
        self._new_scores = logprobs
        return self._numbered(super().take(parts))

    def end(self, finish: Finish) -> Sequence[Event]:
        return self._numbered(self._close(cut=finish == "length"))

    def whole(self, finish: Finish, usage: ResponseUsage) -> ResponseAnswer:
        """Returns the whole response, once all parts were taken."""
        cut = finish == "length"
        self._close(cut)
        return structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            incomplete_details=IncompleteDetails() if cut else None,
            completed_at=None if cut else int(time.time()),
            output=self._items,
            usage=usage,
        )

    def ended(self, response: ResponseAnswer) -> Sequence[Event]:
        kind = ResponseIncomplete if response.status == "incomplete" else ResponseCompleted
        return self._numbered([kind(response=response)])

    def failed(self, code: str, message: str) -> Sequence[Event]:
        """Returns the last event of a failed stream. An item that is still open is left out."""
        done = self._items if self._open is None else self._items[:-1]
        error = ResponseError(code=code, message=message)
        return self._numbered(
            [ResponseFailed(response=structs.replace(self._response, status="failed", error=error, output=done))]
        )

    def _item(self, part: Content | Reasoning | CallBegins) -> OutputItem:
        number = len(self._items)
        match part:
            case Content():
                return MessageItem(
                    role="assistant", content=[], id=f"msg_{self._request}_{number}", status="in_progress"
                )
            case Reasoning():
                return ReasoningItem(content=[], id=f"rs_{self._request}_{number}", status="in_progress")
            case CallBegins(call, name, custom=True):
                return CustomCallItem(
                    call_id=f"call_{self._request}_{call}",
                    name=name,
                    input="",
                    id=f"ctc_{self._request}_{number}",
                    status="in_progress",
                )
            case CallBegins(call, name):
                return FunctionCallItem(
                    call_id=f"call_{self._request}_{call}",
                    name=name,
                    arguments="",
                    id=f"fc_{self._request}_{number}",
                    status="in_progress",
                )

    def _opened(self, item: OutputItem) -> Sequence[Event]:
        added = ItemAdded(output_index=len(self._items) - 1, item=structs.replace(item))
        match item:
            case MessageItem():
                return [added, PartAdded(**self._place(), part=OutputText(text="", logprobs=[]))]
            case ReasoningItem():
                return [added, PartAdded(**self._place(), part=ReasoningText(text=""))]
        return [added]

    def _extended(self, part: Content | Reasoning | CallArguments) -> Sequence[Event]:
        match part:
            case Content(text):
                logprobs, self._new_scores = list(self._new_scores), ()
                self._scores += logprobs
                return [OutputTextDelta(**self._place(), delta=text, logprobs=logprobs)]
            case Reasoning(text):
                return [ReasoningDelta(**self._place(), delta=text)]
            case CallArguments(_, text) if isinstance(self._items[-1], CustomCallItem):
                return [CustomInputDelta(**self._place(), delta=text)]
            case CallArguments(_, text):
                return [ArgumentsDelta(**self._place(), delta=text)]

    def _closed(self, item: OutputItem, text: str, cut: bool) -> Sequence[Event]:
        place, events = self._place(), list[Event]()
        match item:
            case MessageItem():
                logprobs, self._scores = self._scores, []
                written = OutputText(text=text, logprobs=logprobs)
                item.content = [written]
                events += [OutputTextDone(**place, text=text, logprobs=logprobs), PartDone(**place, part=written)]
            case ReasoningItem():
                thought = ReasoningText(text=text)
                item.content = [thought]
                events += [ReasoningDone(**place, text=text), PartDone(**place, part=thought)]
            case FunctionCallItem():
                item.arguments = text
                events.append(ArgumentsDone(**place, name=item.name, arguments=text))
            case CustomCallItem():
                item.input = text
                events.append(CustomInputDone(**place, input=text))
        item.status = "incomplete" if cut else "completed"
        return [*events, ItemDone(output_index=len(self._items) - 1, item=item)]

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._items) - 1, "item_id": self._items[-1].id}

    def _numbered(self, events: Sequence[Event]) -> Sequence[Event]:
        for event in events:
            event.sequence_number = self._events
            self._events += 1
        return events
