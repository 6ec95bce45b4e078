"""Tests the forms of KV on the way: which are taken, what they weigh, and when a codec is used."""

import pytest
from msgspec.structs import replace

from contracts.errors import ConfigError
from contracts.kinds import Codec
from contracts.kv.spec import KVGroup, KVSpec, PayloadConversion, WireForm, refuse_codec_of_bytes
from contracts.messages.handoff import Credit, Grant, Open, Refused
from infra.config.transfer import TransferConfig
from kvtransfer.events import BlocksGranted, BlocksWanted, LayerReady
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.flow import LinkRate
from kvtransfer.protocol.instructions import Land, Send
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.world import DECODE, PREFILL, layer, opened, opening, prompt, to_prefill

# Four vectors of eight numbers for each token.
SPEC = KVSpec((KVGroup("full", (0, 1), 16, 16 * 4 * 8 * 4, vectors=4),), "test", "none", "fp32")
LINK = b"link"
KEY = HandoffKey(PREFILL, 1)


def open_of(spec: KVSpec, tokens: int, form: WireForm | None = None) -> Open:
    return opening(prompt=prompt(tokens), fingerprint=spec.fingerprint(), form=form or spec.form())


def test_a_spec_in_another_form_is_the_spec_of_a_pool_that_has_it() -> None:
    other = SPEC.in_form(WireForm("bf16", 64))
    assert other is not None and other.dtype == "bf16"
    assert other.groups == (KVGroup("full", (0, 1), 64, 64 * 4 * 8 * 2, vectors=4),)
    assert other.in_form(SPEC.form()) == SPEC and other.content() == SPEC.content()
    assert other.fingerprint() != SPEC.fingerprint()
    assert SPEC.in_form(WireForm("bytes", 16)) is SPEC.in_form(WireForm("fp32", 17)) is None


@pytest.mark.parametrize(("codec", "size"), [("none", 2048), ("int8", 512 + 16), ("fp8", 512 + 16)])
def test_a_block_on_its_way(codec: Codec, size: int) -> None:
    assert SPEC.groups[0].wire_bytes(codec, "fp32") == size


@pytest.mark.parametrize(
    "changes",
    [dict(weights="others"), dict(layout="other"), dict(groups=(replace(SPEC.groups[0], vectors=8),))],
    ids=["weights", "layout", "heads"],
)
def test_what_cannot_be_converted_is_refused_with_both_fingerprints(changes: dict[str, object]) -> None:
    theirs = replace(SPEC, **changes)
    (send,) = DecodeLinks(TransferConfig(), DECODE, SPEC).receive(LINK, open_of(theirs, 20), 0, 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Refused)
    assert (send.message.reason, send.message.retryable) == ("misfit", False)
    assert theirs.fingerprint() in send.message.message and SPEC.fingerprint() in send.message.message


@pytest.mark.parametrize("theirs", [WireForm("bf16", 16), WireForm("fp8", 16), WireForm("int8", 8)])
@pytest.mark.parametrize("quantized_here", [True, False])
def test_what_is_quantized_is_not_converted_and_refused_with_both_forms(theirs: WireForm, quantized_here: bool) -> None:
    """Refuses pools from numbers, to them, from another form, and from other blocks."""
    ends = _pool(theirs), _pool(WireForm("int8", 16))
    if not quantized_here:
        ends = ends[::-1]
    sent, here = ends
    assert sent.content() != here.content()
    (send,) = DecodeLinks(TransferConfig(), DECODE, here).receive(LINK, open_of(sent, 20), 0, 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Refused)
    for spec in ends:
        assert f"{spec.fingerprint()} ({spec.dtype} in blocks of {spec.groups[0].block_tokens})" in send.message.message


def test_what_is_quantized_passes_as_it_lies() -> None:
    here = _pool(WireForm("int8", 16))
    (wanted,) = DecodeLinks(TransferConfig(), DECODE, here).receive(LINK, open_of(here, 20), 0, 0.0)
    assert isinstance(wanted, BlocksWanted) and here.content() == _pool(WireForm("int8", 16)).content()
    with pytest.raises(ConfigError, match=r"^--kv-codec: 'fp8': the pool has a byte for each value"):
        refuse_codec_of_bytes("int8", "fp8")


def _pool(form: WireForm) -> KVSpec:
    """Describes a pool of two layers with four vectors of eight numbers for each token."""
    byte = {"bf16": 2 * 8, "int8": 8 + 2, "fp8": 8 + 2}[form.dtype]
    group = KVGroup("full", (0, 1), form.block_tokens, form.block_tokens * 4 * byte, vectors=4, parts=(8,))
    return KVSpec((group,), "test", "none", form.dtype)


def test_a_form_that_is_not_the_fingerprints_is_refused() -> None:
    (send,) = DecodeLinks(TransferConfig(), DECODE, SPEC).receive(LINK, open_of(SPEC, 20, WireForm("bf16", 16)), 0, 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Refused) and send.message.reason == "misfit"


@pytest.mark.parametrize(
    ("held", "theirs_held", "first"),
    [(0, 0, 0), (1, 0, 0), (3, 0, 0), (4, 1, 64), (5, 1, 64), (7, 2, None)],
)
def test_larger_blocks_come_whole_and_land_behind_what_is_held(held: int, theirs_held: int, first: int | None) -> None:
    """Blocks of 64 tokens come to a pool with blocks of 16. A prompt of 100 tokens has two of theirs, seven of ours."""
    theirs = SPEC.in_form(WireForm("fp32", 64))
    assert theirs is not None
    receivers = DecodeLinks(TransferConfig(), DECODE, SPEC)
    (wanted,) = receivers.receive(LINK, open_of(theirs, 100), 0, 0.0)
    assert isinstance(wanted, BlocksWanted)
    ours = list(range(11, 18))
    (send,) = receivers.handle(BlocksGranted(KEY, (ours,), (held,)), 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Grant) and send.message.held == [theirs_held]
    if first is None:
        return
    size = (2 - theirs_held) * 64 * 4 * 8 * 4
    (land,) = receivers.receive(LINK, layer(0, 1, theirs_held, 2 - theirs_held, size=size), size, 0.0)
    assert isinstance(land, Land)
    assert land.blocks == PayloadConversion(theirs.form(), 0, 1, ours, first, held * 16)


def test_no_more_handoffs_wait_for_room_than_may() -> None:
    receivers = DecodeLinks(TransferConfig(grants_waiting=2), DECODE, SPEC)
    opens = [replace(open_of(SPEC, 20), handoff=number, request=f"r{number}") for number in range(5)]
    for number in (1, 2):
        assert isinstance(receivers.receive(LINK, opens[number], 0, 0.0)[0], BlocksWanted)
    (send,) = receivers.receive(LINK, opens[3], 0, 0.0)
    assert isinstance(send, Send) and isinstance(send.message, Refused)
    assert (send.message.reason, send.message.retryable) == ("crowded", True)
    receivers.handle(BlocksGranted(HandoffKey(PREFILL, 1), ([1, 2],), (0,)), 0.0)
    assert isinstance(receivers.receive(LINK, opens[4], 0, 0.0)[0], BlocksWanted)


def test_only_a_busy_link_says_how_fast_it_is() -> None:
    rate = LinkRate(busy=1000)
    rate.left(100, 100, 0.0)
    rate.covered(100, 5.0)
    assert rate.gigabytes_per_second == 0
    rate.left(1100, 1000, 10.0)
    rate.left(2100, 2000, 10.0)
    rate.covered(1100, 10.5)
    rate.covered(2100, 10.5)
    assert rate.gigabytes_per_second == pytest.approx(4e-6)


@pytest.mark.parametrize(
    ("below", "took", "codec"),
    [(0.0, None, "int8"), (1.0, None, "none"), (1.0, 1e-3, "int8"), (1.0, 1e-7, "none")],
    ids=["on all links", "not known", "slow", "fast"],
)
def test_a_codec_is_used_on_the_links_that_are_slow(below: float, took: float | None, codec: Codec) -> None:
    config = TransferConfig(kv_codec="int8", kv_codec_below=below, window=4096)
    senders = PrefillLink(config, PREFILL, DECODE, SPEC)
    if took is not None:
        senders.open(opened(32), 0.0)
        senders.receive(to_prefill(Grant, held=[0], limit=1 << 20), 0.0)
        senders.handle(LayerReady(1, 0, 0, 2), 0.0)
        turn = senders.next_payload()
        assert turn is not None
        senders.payload_taken(*turn, 0, 0.0)
        senders.receive(Credit(sender=DECODE, receiver=PREFILL, seen=4096, limit=1 << 20), took)
    (send,) = senders.open(opened(32, handoff=2), 1.0)
    assert isinstance(send, Send) and isinstance(send.message, Open) and send.message.form.codec == codec
