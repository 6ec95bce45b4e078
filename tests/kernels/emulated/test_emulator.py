"""The emulator runs PTX as a device does, and refuses what a device may answer with a wrong value."""

import re

import pytest
import torch

from tests.kernels.emulated.emulator import run
from tests.kernels.emulated.memory import Fault, GlobalMemory
from tests.kernels.emulated.ptx import parse
from tests.kernels.emulated.warp import Launch

HEAD = """
.visible .entry turned(.param .u64 turned_param_0, .param .u64 turned_param_1)
.reqntid 64
{
    .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<16>;
    ld.param.b64 %rd1, [turned_param_0];
    ld.param.b64 %rd2, [turned_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    shl.b32 %r3, %r1, 2;
    cvt.u64.u32 %rd3, %r3;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mov.b32 %r4, global_smem;
    add.s32 %r5, %r4, %r3;
    xor.b32 %r6, %r3, 252;
    add.s32 %r7, %r4, %r6;
"""
"""64 threads: %rd4 and %rd5 are a thread's words of two tensors, %r5 its word of shared memory, %r7 its partner's."""
TURN = """
    ld.global.b32 { %r8 }, [ %rd4 + 0 ];
    st.shared.b32 [ %r5 + 0 ], { %r8 };
    bar.sync 0;
    ld.shared.b32 { %r9 }, [ %r7 + 0 ];
    st.global.b32 [ %rd5 + 0 ], { %r9 };
    ret;
}
"""
COPY = """
    shl.b32 %r10, %r1, 4;
    cvt.u64.u32 %rd6, %r10;
    add.s64 %rd7, %rd1, %rd6;
    setp.lt.u32 %p1, %r1, 16;
    add.s32 %r11, %r4, %r10;
    @%p1 cp.async.cg.shared.global [ %r11 + 0 ], [ %rd7 + 0 ], 0x10;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.b32 { %r9 }, [ %r7 + 0 ];
    st.global.b32 [ %rd5 + 0 ], { %r9 };
    ret;
}
"""


def emulate(body: str, blocks: int = 1, words: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    given, found = torch.arange(words, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    arguments = {"turned_param_0": given.data_ptr(), "turned_param_1": found.data_ptr()}
    program = parse(HEAD + body)
    run(Launch(program, arguments, (blocks, 1, 1), 256, GlobalMemory([given, found])))
    return given, found


@pytest.mark.parametrize("body", [TURN, COPY])
def test_words_are_turned_through_shared_memory(body: str) -> None:
    given, found = emulate(body)
    assert torch.equal(found, given.flip(0))


@pytest.mark.parametrize(
    ("body", "change", "into", "fault"),
    [
        (TURN, "bar.sync 0;", "", "race: a warp"),
        (COPY, "bar.sync 0;", "", "race: a warp reads shared memory"),
        (COPY, "wait_group 0", "wait_group 1", "before its cp.async"),
        (TURN, "%rd5 + 0", "%rd5 + 4", "out of the bounds"),
        (TURN, "%rd5 + 0", "%rd5 + 2", "misaligned"),
        (TURN, "%r7 + 0", "%r7 + 256", "out of its 256 bytes"),
    ],
)
def test_what_depends_on_luck_is_a_fault(body: str, change: str, into: str, fault: str) -> None:
    assert body.count(change) == 1
    with pytest.raises(Fault, match=re.escape(fault)):
        emulate(body.replace(change, into))


def test_a_word_that_another_warp_read_may_not_change_before_a_barrier() -> None:
    again = "st.shared.b32 [ %r5 + 0 ], { %r9 };\n    st.global"
    with pytest.raises(Fault, match="race: a warp"):
        emulate(TURN.replace("st.global", again))


def test_a_warp_that_ends_leaves_no_other_at_a_barrier() -> None:
    leaves = "setp.lt.u32 %p1, %r1, 32;\n    @%p1 bra $end;\n    bar.sync 0;"
    with pytest.raises(Fault, match="ends while others"):
        emulate(TURN.replace("bar.sync 0;", leaves).replace("    ret;", "$end:\n    ret;"))


def test_some_lanes_of_a_warp_do_not_meet_the_others_at_a_barrier() -> None:
    leaves = "setp.lt.u32 %p1, %r1, 40;\n    @%p1 bra $end;\n    bar.sync 0;"
    with pytest.raises(Fault, match="some lanes"):
        emulate(TURN.replace("bar.sync 0;", leaves).replace("    ret;", "$end:\n    ret;"))


def test_blocks_that_change_the_same_word_race() -> None:
    own = TURN.replace("[ %rd5 + 0 ], { %r9 }", "[ %rd5 + 0 ], { %r2 }")
    emulate(own, blocks=1)
    with pytest.raises(Fault, match="race"):
        emulate(own, blocks=2)


def test_a_block_may_not_read_what_another_changes() -> None:
    from_result = TURN.replace("{ %r8 }, [ %rd4 + 0 ]", "{ %r8 }, [ %rd5 + 0 ]").replace("{ %r9 }", "{ %r3 }", 2)
    with pytest.raises(Fault, match="race"):
        emulate(from_result, blocks=300)
