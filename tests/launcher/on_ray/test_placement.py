"""Which workers stand together, and what a cluster is told to have too few of."""

from launcher.on_ray.placement import NodeResources, WorkerGroup, groups, lacking

GPU = {"GPU": 1.0, "CPU": 1.0}


def node(address: str, **free: float) -> NodeResources:
    return NodeResources(address, {kind: 8.0 for kind in free}, free)


def test_workers_stand_in_pairs_as_far_as_they_go() -> None:
    assert groups(1, 3) == [
        WorkerGroup("pair-0", ("prefill-0", "decode-0")),
        WorkerGroup("decode-1", ("decode-1",)),
        WorkerGroup("decode-2", ("decode-2",)),
    ]
    assert groups(0, 1) == [WorkerGroup("decode-0", ("decode-0",))]


def test_room_is_found_on_several_nodes() -> None:
    assert lacking([node("a", GPU=2, CPU=2), node("b", GPU=1, CPU=4)], [GPU, GPU, GPU, {"CPU": 1.0}]) == ""


def test_too_few_are_said_with_what_was_found_and_wanted() -> None:
    nodes = [node("10.0.0.1", GPU=1, CPU=8), node("10.0.0.2", GPU=0, CPU=8)]
    assert lacking(nodes, [GPU, GPU]) == (
        "2 GPUs wanted, and the cluster has 1 free of 16 (10.0.0.1: 1 GPU; 10.0.0.2: 0 GPUs)"
    )
    assert lacking(nodes, [{"CPU": 17.0}]) == (
        "17 CPUs wanted, and the cluster has 16 free of 16 (10.0.0.1: 8 CPUs; 10.0.0.2: 8 CPUs)"
    )
    assert lacking([], [GPU]) == "1 GPU wanted, and the cluster has 0 free of 0 (it has no node)"


def test_a_worker_has_all_it_needs_on_one_node() -> None:
    nodes = [node("a", GPU=1, CPU=0), node("b", GPU=0, CPU=4)]
    assert lacking(nodes, [GPU]) == (
        "1 GPU and 1 CPU wanted on one node, and none has as much free (a: 1 GPU, 0 CPUs; b: 0 GPUs, 4 CPUs)"
    )
