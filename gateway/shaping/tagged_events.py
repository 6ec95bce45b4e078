"""Encodes msgspec structs as server-sent events that are named by the struct's tag."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec


def event_encoder(kinds: Iterable[type[msgspec.Struct]]) -> Callable[[Any], bytes]:
    """Returns a function that encodes a struct of one of these tagged kinds as a server-sent event."""
    heads = {kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in kinds}
    encode = msgspec.json.Encoder().encode

    def encoded(event: Any) -> bytes:
        return b"%s%s\n\n" % (heads[type(event)], encode(event))

    return encoded
