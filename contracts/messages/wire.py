"""Encoding and strict decoding of messages, with their common fields: version, sender, receiver."""

from types import UnionType
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from contracts.errors import MessageError
from contracts.ids import Name

VERSION = 16  # the version of the whole protocol. Peers of different versions refuse each other, naming both.

encode = msgspec.msgpack.Encoder().encode

AnyMessage = TypeVar("AnyMessage")


class MessageDecoder(Generic[AnyMessage]):
    """Decodes messages of one direction, such as from gateway to worker. Raises `MessageError`."""

    def __init__(self, union: type[AnyMessage] | UnionType, way: str) -> None:
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(union)
        self._way = way

    def __call__(self, data: bytes | memoryview) -> AnyMessage:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError(f"not a message from {self._way}: {type(error).__name__}") from None


class Addressed(Struct, frozen=True, kw_only=True):
    """The epochs of both ends of a message."""

    sender: Name
    receiver: Name
