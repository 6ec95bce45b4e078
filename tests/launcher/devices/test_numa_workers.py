"""Workers keep to NUMA nodes if every node has memory for its workers; counts follow the nodes."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from infra.config.engine import EngineOptions
from infra.memory.numa_nodes import MemoryNode
from launcher.devices.numa_workers import NumaChoice, choose_nodes, numa_choice
from launcher.devices.worker_counts import decide_workers, gpus_of_host
from launcher.options import UpConfig
from tests.embedding_models import with_modules

COPY_BYTES = 1 << 20
UNSET = UpConfig(device="cpu", engine=EngineOptions(dtype="bf16"))
ONE_EACH = replace(UNSET, prefill=1, decode=1)


def nodes(*available_bytes: int) -> list[MemoryNode]:
    return [MemoryNode(2 * at, frozenset([at]), True, each) for at, each in enumerate(available_bytes)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = torch.zeros(COPY_BYTES // 2, dtype=torch.bfloat16)
    save_file({"model.layers.0.mlp.up_proj.weight": weights}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1}')
    return tmp_path


def settled(config: UpConfig, numa_nodes: int, model: Path) -> tuple[int, int]:
    return decide_workers(config, gpus_of_host([]), model, numa_nodes)[:2]


def test_each_node_gets_a_worker_of_each_role(model: Path) -> None:
    choice = choose_nodes(nodes(4 * COPY_BYTES, 4 * COPY_BYTES), UNSET, model)
    assert choice.nodes == (0, 2)
    assert choice.note.startswith("NUMA nodes 0, 2: 2 workers keep to each node's cores and memory; --prefill 1")
    assert settled(UNSET, 2, model) == (2, 2)
    unsplit = replace(UNSET, prefill=0)
    choice = choose_nodes(nodes(2 * COPY_BYTES, 2 * COPY_BYTES), unsplit, model)
    assert choice.nodes == (0, 2) and "one worker keeps to each" in choice.note
    assert settled(unsplit, 2, model) == (0, 2)
    assert settled(replace(UNSET, decode=4), 2, model) == (2, 4)


def test_a_model_of_vectors_hands_nothing_over_and_gets_no_prefill_worker(model: Path) -> None:
    with_modules(model, "pooling_mode_mean_tokens")
    assert settled(UNSET, 1, model) == (0, 1)
    assert settled(ONE_EACH, 1, model) == (1, 1)


def test_weights_that_do_not_fit_into_each_node_are_interleaved_and_a_sentence_says_so(model: Path) -> None:
    choice = choose_nodes(nodes(4 * COPY_BYTES, 4 * COPY_BYTES - 1), UNSET, model)
    assert choice.nodes == ()
    assert choice.note == (
        "2 NUMA nodes: workers take all of them, since the weights of 2 workers take 2.0MiB, and only 4.0MiB of node 2"
        " are free"
    )
    assert settled(UNSET, 0, model) == (1, 1)


def test_kv_that_the_user_asks_for_must_fit_too(model: Path) -> None:
    room = nodes(8 * COPY_BYTES, 8 * COPY_BYTES)
    for memory, kept in ((3 * COPY_BYTES, (0, 2)), (3 * COPY_BYTES + 1, ())):
        kv = replace(UNSET, engine=replace(UNSET.engine, kv_memory=memory))
        assert choose_nodes(room, kv, model).nodes == kept
        tier = replace(UNSET, engine=replace(UNSET.engine, host_kv_memory=memory))
        assert choose_nodes(room, tier, model).nodes == kept
        file = replace(UNSET, engine=replace(UNSET.engine, host_kv_memory=memory, host_kv_directory="/blocks"))
        assert choose_nodes(room, file, model).nodes == (0, 2)


@pytest.mark.parametrize("config", [ONE_EACH, replace(UNSET, prefill=1), replace(UNSET, decode=3)])
def test_counts_that_the_nodes_do_not_divide_take_all_nodes(config: UpConfig, model: Path) -> None:
    assert choose_nodes(nodes(1 << 40, 1 << 40), config, model) == NumaChoice()


def test_one_node_an_unknown_model_and_gpus_change_nothing(model: Path) -> None:
    assert choose_nodes(nodes(1 << 40), UNSET, model) == choose_nodes([], UNSET, model) == NumaChoice()
    assert choose_nodes(nodes(1 << 40, 1 << 40), UNSET, None) == NumaChoice()
    assert numa_choice(UNSET, model, gpus=2) == NumaChoice()
