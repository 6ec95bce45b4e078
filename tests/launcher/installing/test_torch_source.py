"""Which build of PyTorch is installed: a CPU host must not get gigabytes of CUDA where anything else can be had."""

import pytest

from launcher.installing.torch_source import CPU_INDEX, INDEX_VARIABLE, TorchSource, Versions, choose


def index(configured: set[str], cpu: set[str]) -> Versions:
    """Package indexes that hold these versions."""
    return lambda url: cpu if url == CPU_INDEX else configured


@pytest.mark.parametrize(
    ("settings", "nvidia", "versions", "source"),
    [
        ({INDEX_VARIABLE: "https://mirror"}, False, index({"2.0+cpu"}, {"2.0+cpu"}), "https://mirror"),
        ({INDEX_VARIABLE: "https://mirror"}, True, index(set(), set()), "https://mirror"),
        ({}, True, index({"2.0+cpu"}, {"2.0+cpu"}), None),
        ({}, False, index({"2.0", "2.0+cpu"}, {"2.0+cpu"}), None),
        ({}, False, index({"2.0", "1.9+cpu"}, {"2.0+cpu"}), CPU_INDEX),
        ({}, False, index({"2.0"}, {"1.9+cpu"}), None),
    ],
)
def test_the_nearest_fitting_index_is_chosen(
    settings: dict[str, str], nvidia: bool, versions: Versions, source: str | None
) -> None:
    assert choose("2.0", settings, nvidia, versions).index == source


def test_gigabytes_are_announced() -> None:
    chosen = choose("2.0", {}, False, index({"2.0"}, set()))
    assert chosen == TorchSource(None, chosen.why)
    assert "gigabytes" in chosen.why
    assert INDEX_VARIABLE in chosen.why
