"""What a backend says of itself: how many steps are under way, and what a step calls at each of its layers."""

import torch

from engine.backends.reference.backend import ReferenceBackend
from engine.backends.triton.backend import TritonBackend
from engine.plan import StepPlan

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAN = StepPlan(7, [])


def test_a_gpu_has_two_steps_under_way_and_a_cpu_one() -> None:
    for backend in (ReferenceBackend, TritonBackend):
        assert backend(CPU, torch.float32).launch_depth == 1 and backend(CUDA, torch.float32).launch_depth == 2


def test_where_the_hosts_threads_compute_a_layer_is_told_and_then_cores_are_divided() -> None:
    seen: list[str] = []

    def written(plan: StepPlan, group: int, layer: int) -> None:
        seen.append(f"{plan.step} {group} {layer}")

    backend = ReferenceBackend(CPU, torch.float32)
    for told, expected in ((written, ["7 0 3", "divided"]), (None, ["divided"])):
        seen.clear()
        signal = backend.layer_signal(told, lambda: seen.append("divided"))
        assert signal is not None
        signal(PLAN, 0, 3)
        assert seen == expected


def test_where_they_do_not_a_layer_is_told_if_anybody_wants_to_know() -> None:
    """A step that nobody is told of may be a recorded one."""

    def written(plan: StepPlan, group: int, layer: int) -> None: ...

    backend = TritonBackend(CPU, torch.float32)
    assert backend.layer_signal(written, lambda: None) is written
    assert backend.layer_signal(None, lambda: None) is None
