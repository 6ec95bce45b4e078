"""KV in other forms: what codecs make of blocks, and tokens that land in pools of another format and block size."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import MessageError
from contracts.kinds import Codec
from contracts.kv.spec import SCALE_BYTES, PayloadConversion, WireForm
from engine.backends.native.codec import NativeCodec
from engine.backends.native.library import load
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.device_codec import DeviceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.backends.triton.codec import TritonCodec
from engine.device import DTYPES_BY_NAME, dtype_name
from engine.kv.codec import BlockCodec, Landing, bytes_of
from engine.kv.payload import tensor_over
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.plan import NULL_BLOCK
from kernels import block_copy
from kernels.block_copy import CodecName, reference_encode
from kernels.device import assumed
from tests.engine.configs import dense
from tests.waiting import DEADLINE_S

ODD = dense(2, kv_heads=2, head_dim=22)
"""Rows that end within a vector of every processor."""
VECTORS, WIDTH = 4, 22
CPU = torch.device("cpu")
BLOCK_CODECS: dict[str, BlockCodec] = {
    "native": NativeCodec(load()),
    "torch": ReferenceCodec(),
    "device": DeviceCodec(),
    "triton": TritonCodec(),
}
DECODERS = ("native", "torch", "device")
BLOCK_SIZES = (8, 16, 32, 64)
POISON = -12345.0
CODECS: tuple[CodecName, ...] = ("fp8", "int8")


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same(left: Tensor, right: Tensor) -> bool:
    """To the bit, but for what kind of NaN it is."""
    nan = left.isnan()
    return torch.equal(nan, right.isnan()) and torch.equal(bits(left)[~nan], bits(right)[~nan])


def random_values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Makes values of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-6, 3, shape[-1])
    return (torch.randn(shape, generator=generator) * sizes).to(dtype)


def make_pool(
    dtype: torch.dtype, block: int, block_codec: BlockCodec, device: torch.device = CPU, blocks: int = 12
) -> KVPool:
    pool = KVPool(make_spec(ODD, dtype, block, "w"), [blocks], device, ReferenceMover(), block_codec)
    for layer in pool.layers:
        layer[1:] = POISON
    return pool


def forms(spec_dtype: str, block: int) -> list[WireForm]:
    return [WireForm(spec_dtype, block, codec) for codec in ("none", "fp8", "int8")]


def test_fp8_goes_pytorchs_way_on_gpus_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not compile there: not before sm_89."""
    monkeypatch.setattr(block_copy, "encode", lambda *given: pytest.fail("the kernel was launched"))
    layer, blocks = random_values((3, VECTORS, 16, WIDTH), torch.float16), torch.tensor([2, 1])
    with assumed(8, 6):
        found = TritonCodec().encode(layer, blocks, "fp8")
    assert torch.equal(found, DeviceCodec().encode(layer, blocks, "fp8"))


# Triton's interpreter does not round bf16 as a GPU does; on a GPU the kernels' own tests have it.
ENCODERS = {
    f"{name}-{kind}": (block_codec, dtype)
    for name, block_codec in BLOCK_CODECS.items()
    for kind, dtype in DTYPES_BY_NAME.items()
    if not (isinstance(block_codec, TritonCodec) and dtype == torch.bfloat16)
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_codec_makes_what_the_kernels_reference_makes(encoder: str, codec: CodecName) -> None:
    """To the bit: scales, and then the values of all vectors; also of blocks that are zero or partly unwritten."""
    block_codec, dtype = ENCODERS[encoder]
    layer = random_values((9, VECTORS, 16, WIDTH), dtype)
    layer[2] = 0
    layer[3, 0, 1, :6] = torch.tensor([float("inf"), float("nan"), float("-inf"), -0.0, 1e-30, -1e-30]).to(dtype)
    layer[4, 1] = torch.finfo(dtype).smallest_normal / 4
    layer[5] = float("nan")
    blocks = torch.tensor([7, 2, 3, 4, 5, 1])
    found = block_codec.encode(layer, blocks, codec)
    assert found.shape == (6, bytes_of(WireForm(dtype_name(dtype), 16, codec), VECTORS, WIDTH))
    values, scales = reference_encode(layer, blocks, codec)
    assert scales is not None
    split = VECTORS * SCALE_BYTES
    assert torch.equal(found[:, :split], scales.flatten(1).contiguous().view(torch.uint8))
    assert torch.equal(found[:, split:], values.flatten(1).contiguous().view(torch.uint8))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("block_codec", BLOCK_CODECS.values(), ids=BLOCK_CODECS)
def test_no_blocks_are_no_bytes(block_codec: BlockCodec, codec: CodecName) -> None:
    assert block_codec.encode(torch.zeros(2, 2, 8, WIDTH), torch.empty(0, dtype=torch.int64), codec).numel() == 0


EVERY = {  # every bit pattern of the short formats; of fp32 what is near a tie, a limit, or below the normal numbers
    "bf16": torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16),
    "fp16": torch.arange(1 << 16).to(torch.int16).view(torch.float16),
    "fp32": (torch.arange(1 << 16)[:, None] * (1 << 16) + torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0x1000, 0x3000]))
    .to(torch.int32)
    .view(torch.float32)
    .flatten(),
}


@pytest.mark.parametrize("source", DTYPES_BY_NAME)
@pytest.mark.parametrize("target", DTYPES_BY_NAME)
def test_every_number_is_converted_as_pytorch_does(source: str, target: str) -> None:
    """And what is in the pool's format already keeps its bits, those of NaN as well."""
    values = EVERY[source]
    layer = torch.zeros((2, 2, 8, values.numel() // 16), dtype=DTYPES_BY_NAME[target])
    landing = Landing(WireForm(source, 8), [1], 0, 0, 8)
    for block_codec in (BLOCK_CODECS[name] for name in DECODERS):
        layer.zero_()
        block_codec.decode(values.view(torch.uint8).view(1, -1), landing, layer)
        found = layer[1].flatten()
        assert same(found, values.to(DTYPES_BY_NAME[target]))
        assert not layer[0].any()
        if source == target:
            assert torch.equal(bits(found), bits(values))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("target", DTYPES_BY_NAME)
def test_every_byte_is_decoded_as_pytorch_does(codec: CodecName, target: str) -> None:
    scales = torch.tensor([2.0**-126, 0.001, 3.7, 1e36])
    values = torch.arange(256, dtype=torch.int32).to(torch.uint8).expand(4, 256)
    payload = torch.cat((scales.view(torch.uint8), values.flatten()))[None].contiguous()
    kind = torch.int8 if codec == "int8" else torch.float8_e4m3fn
    expected = (values.contiguous().view(kind).float() * scales[:, None]).to(DTYPES_BY_NAME[target])
    for block_codec in (BLOCK_CODECS[name] for name in DECODERS):
        layer = torch.zeros((2, 4, 8, 32), dtype=DTYPES_BY_NAME[target])
        block_codec.decode(payload, Landing(WireForm("bf16", 8, codec), [1], 0, 0, 8), layer)
        assert same(layer[1].view(4, 256), expected)


@dataclass(frozen=True)
class Arrival:
    """A payload from a pool of one form, for a pool of another."""

    source: str
    target: str
    codec: Codec
    source_block: int
    target_block: int
    sent: list[int]  # blocks of the sender's pool
    table: list[int]  # of the receiver's
    first_block: int  # of the sender's, which the payload begins with
    held: int
    cuts: list[int]  # in thousandths


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    number = st.sampled_from(sorted(DTYPES_BY_NAME))
    codecs: tuple[Codec, ...] = ("none", "fp8", "int8")
    numbers = st.permutations(range(1, 12))
    table = draw(numbers)[: draw(st.integers(1, 11))]
    hidden = min(draw(st.integers(0, 3)), len(table))  # by a window
    return Arrival(
        draw(number),
        draw(number),
        draw(st.sampled_from(codecs)),
        draw(st.sampled_from(BLOCK_SIZES)),
        draw(st.sampled_from(BLOCK_SIZES)),
        draw(numbers)[: draw(st.integers(1, 4))],
        [NULL_BLOCK] * hidden + table[hidden:],
        draw(st.integers(0, 3)),
        draw(st.integers(0, 150)),
        sorted(draw(st.lists(st.integers(0, 1000), max_size=3))),
    )


@pytest.mark.parametrize(
    ("block_codec", "device"),
    [
        *((block_codec, CPU) for block_codec in DECODERS),
        pytest.param("device", torch.device("cuda", 0), marks=pytest.mark.gpu),  # the others are a CPU's operators
    ],
)
def test_tokens_land_in_their_places_and_nowhere_else(block_codec: str, device: torch.device) -> None:
    """Leaves out tokens before `held`, in null blocks, and behind the table's end; every other byte stays."""

    @settings(max_examples=80)
    @given(arrivals())
    def check(case: Arrival) -> None:
        send_and_land(BLOCK_CODECS[block_codec], device, case)

    check()


def send_and_land(block_codec: BlockCodec, device: torch.device, case: Arrival) -> None:
    """Converts one payload, and compares every value of both layers. On a GPU transfers have a stream of their own."""
    dtype = DTYPES_BY_NAME[case.source]
    sender = make_pool(dtype, case.source_block, block_codec, device)
    sender.layers[1][1:] = random_values(tuple(sender.layers[1][1:].shape), dtype, 1).to(device)
    receiver = make_pool(DTYPES_BY_NAME[case.target], case.target_block, block_codec, device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # what was written here is there for transfers
    first = case.first_block * case.source_block
    form = WireForm(case.source, case.source_block, case.codec)
    payload = b"".join(sender.read(0, 1, case.sent, case.codec))
    places = [0, *(len(payload) * cut // 1000 for cut in case.cuts), len(payload)]
    frames = [payload[begin:end] for begin, end in pairwise(places)]
    expected = receiver.layers[1].cpu().clone()
    rows = decoded(sender.layers[1].cpu(), case)
    for index, row in enumerate(rows):
        token = first + index
        block, offset = divmod(token, case.target_block)
        if token >= case.held and block < len(case.table) and case.table[block] != NULL_BLOCK:
            expected[case.table[block], :, offset] = row.to(expected.dtype)
    receiver.convert(PayloadConversion(form, 0, 1, case.table, first, case.held), frames)
    receiver.begin_step()  # what follows comes behind what has landed
    assert torch.equal(bits(receiver.layers[1].cpu()), bits(expected))
    assert not receiver.layers[0][1:].ne(POISON_AS[case.target]).any(), "another layer was written"


POISON_AS = {name: torch.tensor(POISON).to(dtype).item() for name, dtype in DTYPES_BY_NAME.items()}


def decoded(layer: Tensor, case: Arrival) -> Tensor:
    """`[tokens, vectors, width]` of the blocks that were sent."""
    blocks = torch.tensor(case.sent)
    if case.codec == "none":
        return layer[blocks].movedim(2, 1).flatten(0, 1)
    values, scales = reference_encode(layer, blocks, case.codec)
    assert scales is not None
    return (values.float() * scales[..., None]).movedim(2, 1).flatten(0, 1)


def test_what_is_no_whole_number_of_blocks_is_refused() -> None:
    pool = make_pool(torch.bfloat16, 16, BLOCK_CODECS["native"])
    before = pool.layers[0].clone()
    for form in forms("fp32", 8):
        size = bytes_of(form, VECTORS, WIDTH)
        for wrong in (0, 1, size - 1, size + 1):
            with pytest.raises(MessageError, match=f"payload of {wrong} bytes, .* blocks of {size} bytes"):
                pool.convert(PayloadConversion(form, 0, 0, [1, 2], 0, 0), [bytes(wrong)])
    for strange in (WireForm("fp4", 8), WireForm("bytes", 8), WireForm("fp32", 0), WireForm("fp32", -8)):
        with pytest.raises(MessageError, match=f"KV of {strange.described()} cannot"):
            pool.convert(PayloadConversion(strange, 0, 0, [1, 2], 0, 0), [bytes(64)])
    assert torch.equal(pool.layers[0], before)


def test_a_pool_is_not_written_outside_its_blocks() -> None:
    pool, form = make_pool(torch.bfloat16, 16, BLOCK_CODECS["native"]), WireForm("fp32", 8)
    payload = [bytes(bytes_of(form, VECTORS, WIDTH))]
    for group, layer, table in ((0, 0, [12]), (0, 2, [1]), (1, 0, [1])):
        with pytest.raises(AssertionError):
            pool.convert(PayloadConversion(form, group, layer, table, 0, 0), payload)


def test_frames_that_may_not_be_written_are_read_without_a_warning() -> None:
    frame = bytes(range(200))
    assert tensor_over(memoryview(frame)[3:]).tolist() == list(range(3, 200))
    assert tensor_over(b"").numel() == 0


ALONE = """
import os, threading, torch
from contracts.kv.spec import WireForm
from engine.kv.codec import Landing
from engine.backends.reference.codec import ReferenceCodec

def threads():
    return len(os.listdir("/proc/self/task"))

def started_by(work):
    found = []
    def run():
        before = threads()
        work()
        found.append(threads() - before)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]

def convert():
    for layer in layers:
        for codec in ("fp8", "int8"):
            sent = block_codec.encode(layer, blocks, codec)
            block_codec.decode(sent, Landing(WireForm("fp32", 32, codec), [1, 2, 3], 0, 0, 96), layer)
        sent = layer[1:].view(torch.uint8).view(3, -1)
        form = WireForm("fp32" if layer.dtype == torch.float32 else "bf16", 32)
        block_codec.decode(sent, Landing(form, [1, 2, 3], 0, 0, 96), layer)

block_codec, blocks = ReferenceCodec(), torch.arange(1, 4)
layers = [torch.ones(4, 16, 32, 128, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
torch.set_num_threads(4)
convert()
torch.zeros(1 << 22).add_(1)
print(started_by(convert), started_by(lambda: torch.zeros(1 << 22).add_(1)))
"""


def test_pytorchs_way_starts_no_threads() -> None:
    """What the I/O thread runs on a CPU beside the engine; an operator that is not cut does start them."""
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=DEADLINE_S)
    assert not run.returncode, run.stderr
    alone, shared = map(int, run.stdout.split())
    assert alone == 0 and shared > 0


def test_the_native_library_takes_no_lock_of_python() -> None:
    """Calls through `CDLL` let other threads run meanwhile; those through `PyDLL` would not."""
    assert not isinstance(load(), ctypes.PyDLL)
