"""Encodes messages for the wire, decodes them strictly, and holds what all of them have: a version and two ends."""

from types import UnionType
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from contracts.errors import MessageError
from contracts.ids import Name

VERSION = 14
"""The version of the whole protocol. Peers of different versions refuse each other, naming both."""

encode = msgspec.msgpack.Encoder().encode

AnyMessage = TypeVar("AnyMessage")


class MessageDecoder(Generic[AnyMessage]):
    """Turns bytes into messages of one way, such as from gateway to worker. Raises `MessageError` for anything else."""

    def __init__(self, union: type[AnyMessage] | UnionType, way: str) -> None:
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(union)
        self._way = way

    def __call__(self, data: bytes | memoryview) -> AnyMessage:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError(f"not a message from {self._way}: {type(error).__name__}") from None


class Addressed(Struct, frozen=True, kw_only=True):
    """Names both ends of a message by their epochs."""

    sender: Name
    receiver: Name
