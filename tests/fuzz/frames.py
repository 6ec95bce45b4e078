"""Makes what a fuzzer sends: messages of every kind that nobody in their right mind sends. Seeded, to be repeated.

A message is made by its struct's types alone, of values that fit together often enough to be believed (few requests,
few handoffs, the right epochs) and are absurd often enough (extreme numbers). Then its bytes or its frames are spoiled.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, structs

from contracts.kv.block_hash import SHORT_KEY_BYTES as KEY
from contracts.messages.gateway import Drain, FromWorker, KeyNews, Piece, ToWorker
from contracts.messages.handoff import Open, ToDecode, ToPrefill
from contracts.messages.job import AnyJob
from contracts.messages.packed_ids import ID_BYTES, packed
from contracts.messages.wire import VERSION, encode
from contracts.scores import Scores

REPLAYED_MESSAGES = 64  # sent messages that may come again
MAX_FRAME_BYTES = 4096  # bytes of a random frame at most
MAX_LARGE_FRAME_BYTES = 4 << 20  # bytes of a large one at most
REQUEST_COUNT = 8  # different ones, so that messages meet what others have begun
HANDOFF_COUNT = 6
POWERS = tuple(1 << bits for bits in (16, 31, 32, 62, 63))
EXTREMES = (0, -1, 1, 255, -(1 << 63), (1 << 64) - 1, *POWERS, *(power - 1 for power in POWERS))
FLOATS = (0.0, -1.0, 1.0, 1e-300, 1e12, 1e308, float("inf"), float("-inf"), float("nan"))
WORDS = ("", "\0", "x" * 1000, "../../etc/passwd", "é" * 40, "tcp://127.0.0.1:1", "\N{WAVE DASH}%s%n{}")
UNIONS: tuple[UnionType, ...] = (ToWorker, ToDecode, ToPrefill, FromWorker, AnyJob)
# "hello", "ping", … as they stand in a message
TAGS = tuple(kind.__struct_config__.tag.encode() for union in UNIONS for kind in get_args(union))

Frames = list[bytes]


class Sent(NamedTuple):
    """Holds one message, and the name of what was done to it."""

    kind: str
    frames: Frames


class Target(NamedTuple):
    """Holds what an insider knows about a port: the messages that it reads, the worker's epoch and fingerprint."""

    union: UnionType
    epoch: str
    fingerprint: str


class Mutator:
    """Makes messages to one port without end."""

    def __init__(self, target: Target, seed: int | str) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._sent: list[Frames] = []
        self._senders = [f"fuzz{number}" for number in range(4)]
        self._makers: dict[str, Callable[[], Frames]] = {
            "valid": lambda: self._message(target.union, 0.0),
            "extreme": lambda: self._message(target.union, 0.3),
            "foreign": lambda: self._message(self._chance.choice(UNIONS), 0.1),
            "wrong epoch": lambda: self._message(target.union, 0.05, self._chance.choice(["", "nobody", *WORDS])),
            "random": lambda: [self._chance.randbytes(self._chance.randrange(MAX_FRAME_BYTES))],
            "large": lambda: [*self._message(target.union, 0.0), bytes(self._chance.randrange(MAX_LARGE_FRAME_BYTES))],
            "frames": self._odd_frames,
            "replayed": self._replayed,
            **{kind: self._spoiled(change) for kind, change in CHANGES.items()},
        }
        self.kinds = tuple(self._makers)
        # Large ones are as slow as a thousand others.
        self._weights = [0.02 if kind == "large" else 1.0 for kind in self.kinds]

    def next(self) -> Sent:
        """Returns the next message, but no `Drain` of this life, which a worker is right to obey to its own harm."""
        (kind,) = self._chance.choices(self.kinds, self._weights)
        frames = self._makers[kind]()
        while self._ends_the_worker(frames):
            frames = self._makers[kind]()
        if len(self._sent) < REPLAYED_MESSAGES:
            self._sent.append(frames)
        else:
            self._sent[self._chance.randrange(REPLAYED_MESSAGES)] = frames
        return Sent(kind, frames)

    def _ends_the_worker(self, frames: Frames) -> bool:
        return any(b"drain" in frame and self._target.epoch.encode() in frame for frame in frames)

    def _message(self, union: UnionType, odd: float, receiver: str | None = None) -> Frames:
        """Makes a random message of a union; each of its values is absurd with probability `odd`."""
        kind = self._chance.choice([kind for kind in get_args(union) if kind is not Drain or receiver is not None])
        known = {
            "sender": self._chance.choice(self._senders),
            "receiver": self._target.epoch if receiver is None else receiver,
            "fingerprint": self._target.fingerprint,
            "request": f"request{self._chance.randrange(REQUEST_COUNT)}",
            "handoff": self._chance.randrange(HANDOFF_COUNT),
            "version": VERSION,
            "salt": "",
            "remaining_ms": 500.0,
            "due_ms": 300.0,
        }
        frames = [encode(self._struct(kind, known, odd))]
        if kind.__struct_config__.tag == "layer":
            frames += [self._chance.randbytes(self._chance.choice([0, 16, 1024])) for _ in range(self._draw(3))]
        return frames

    def _struct(self, kind: type, known: dict[str, Any], odd: float) -> Any:
        """Makes a struct, or a named tuple."""
        values = {}
        for name, hint in hints(kind).items():
            sane = name in known and self._chance.random() >= odd
            values[name] = known[name] if sane else self._value(hint, known, odd)
        if kind is KeyNews:  # what is no whole keys, or a piece that there is not, cannot be made
            values |= {name: self._chance.randbytes(KEY * self._draw(5)) for name in ("kept", "lost")}
            values["pieces"] = self._draw(64)
            values["piece"] = self._draw(max(1, values["pieces"])) if values["pieces"] else 0
        if kind is Piece:
            values["ids"] = self._chance.randbytes(ID_BYTES * self._draw(300))
        if kind is Open and self._chance.random() >= odd:  # whose ids stand beside the prompt
            values["ids"] = packed([id % (1 << 31) for id in values["prompt"].token_ids])  # others cannot be packed
            values["prompt"] = structs.replace(values["prompt"], token_ids=[])
        if values.get("scores") is not None:
            values["scores"] = self._scores(len(values["token_ids" if "token_ids" in values else "emitted"]))
        return kind(**values)

    def _scores(self, tokens: int) -> Scores:
        """Makes scores of so many tokens: other lengths cannot be made, and come as spoiled messages."""
        top = self._draw(4)
        return Scores(top, *(self._chance.randbytes(4 * tokens * each) for each in (1, 1, top, top)))

    def _value(self, kind: Any, known: dict[str, Any], odd: float) -> Any:
        """Makes a value of a field's type; structs inside take `known` values too."""
        origin, parts = get_origin(kind), get_args(kind)
        absurd = self._chance.random() < odd
        if kind is int:
            return self._chance.choice(EXTREMES) if absurd else self._draw(40)
        if kind is float:
            return self._chance.choice(FLOATS) if absurd else self._chance.random()
        if kind is str:
            return self._chance.choice(WORDS) if absurd else f"word{self._draw(9)}"
        if kind is bool:
            return self._chance.random() < 0.5
        if kind is bytes:
            return self._chance.randbytes(self._draw(1000) if absurd else 32)
        if kind is NoneType:
            return None
        if kind is Scores:
            return self._scores(self._draw(40))
        if origin is Literal:
            return self._chance.choice(parts)
        if origin in (list, tuple, Sequence):
            integers = 300 if absurd else 20
            longest = integers if parts[0] is int else 4  # structs have lists of their own
            found = [self._value(parts[0], known, odd) for _ in range(self._draw(longest))]
            return tuple(found) if origin is tuple else found
        if origin in (Union, UnionType):
            return self._value(self._chance.choice(parts), known, odd)
        assert isinstance(kind, type) and issubclass(kind, Struct | tuple), f"no value for {kind}"
        return self._struct(kind, known, odd)

    def _odd_frames(self) -> Frames:
        """Makes none to six frames: messages, payloads, nothing."""
        return [
            self._chance.choice([b"", b"\0", *self._message(self._target.union, 0.1)]) for _ in range(self._draw(7))
        ]

    def _replayed(self) -> Frames:
        return list(self._chance.choice(self._sent)) if self._sent else []

    def _spoiled(self, change: "Change") -> Callable[[], Frames]:
        def make() -> Frames:
            head, *rest = self._message(self._target.union, 0.0)
            return [change(head, self._chance), *rest]

        return make

    def _draw(self, below: int) -> int:
        return int(self._chance.random() * below)  # five times as fast as randrange


hints = cache(get_type_hints)
Change = Callable[[bytes, random.Random], bytes]


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Flips one to eight bits."""
    spoiled = bytearray(data)
    for _ in range(chance.randrange(1, 9)):
        spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def inserted(data: bytes, chance: random.Random) -> bytes:
    """Inserts a few bytes."""
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]


def deleted(data: bytes, chance: random.Random) -> bytes:
    """Deletes a few bytes."""
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randrange(1, 9) :]


def duplicated(data: bytes, chance: random.Random) -> bytes:
    """Repeats a part."""
    at = chance.randrange(len(data))
    end = chance.randrange(at, len(data)) + 1
    return data[:end] + data[at:end] + data[end:]


def truncated(data: bytes, chance: random.Random) -> bytes:
    """Cuts off the end."""
    return data[: chance.randrange(len(data))]


def swapped(data: bytes, chance: random.Random) -> bytes:
    """Names another type of message, with the same fields."""
    for tag in TAGS:
        if (word := msgspec.msgpack.encode(tag.decode())) in data:
            return data.replace(word, msgspec.msgpack.encode(chance.choice(TAGS).decode()), 1)
    return data


CHANGES: dict[str, Change] = {
    each.__name__: each for each in (flipped, inserted, deleted, duplicated, truncated, swapped)
}


# Raw TCP: the greeting and handshake of ZMTP 3.1 (rfc.zeromq.org/spec/37), and what is not one ------------------------


def conversation(body: Sequence[bytes], mechanism: bytes, chance: random.Random) -> bytes:
    """Makes what a DEALER says at first: greeting, READY (or a CURVE HELLO of noise), a message of these frames."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
    if mechanism == b"CURVE":
        hello = b"\x05HELLO\x01\x00" + bytes(72) + chance.randbytes(120)
        return greeting + b"\x04" + bytes([len(hello)]) + hello
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    said = greeting + b"\x04" + bytes([len(ready)]) + ready
    for number, frame in enumerate(body):
        more = number + 1 < len(body)
        said += bytes([2 | more]) + len(frame).to_bytes(8, "big") + frame
    return said


RAW = ("noise", "greeting", "handshake", "CURVE", "message", "endless frame")


def raw(mutator: Mutator, chance: random.Random) -> Sent:
    """Makes the bytes of one TCP connection, as a single frame."""
    kind = chance.choice(RAW)
    said = conversation(mutator.next().frames, b"CURVE" if kind == "CURVE" else b"NULL", chance)
    match kind:
        case "noise":
            said = chance.randbytes(chance.randrange(1, MAX_FRAME_BYTES))
        case "greeting":
            said = chance.choice([flipped, truncated, inserted])(said[:64], chance)
        case "handshake" | "CURVE":
            said = said[:64] + chance.choice([flipped, truncated, inserted, deleted])(said[64:300], chance)
        case "endless frame":
            said += b"\x02" + (chance.choice(EXTREMES) % (1 << 64)).to_bytes(8, "big") + chance.randbytes(64)
    return Sent(kind, [said])
