"""Names and places of adapters: what is refused, and that links and dots lead nowhere else."""

from pathlib import Path

import pytest

from contracts.adapters import AdapterSource, check_name, directory_inside, parse_sources
from contracts.errors import AdapterError, ConfigError


def test_sources_are_read() -> None:
    assert parse_sources(["sql=/a/b=c", "law=rel"]) == [AdapterSource("sql", "/a/b=c"), AdapterSource("law", "rel")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["sql"], "--lora: 'sql': it is name=DIR"),
        (["sql="], "--lora: 'sql=': it is name=DIR"),
        (["=dir"], "'' is no adapter's name"),
        (["-x=dir"], "'-x' is no adapter's name"),
        (["a=x", "a=y"], "the name 'a' is taken by another"),
        (["base=x"], "the name 'base' is taken by the model"),
    ],
)
def test_bad_sources_are_refused_by_name(given: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_sources(given, ["base"])


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\n", "ä", "../a"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(AdapterError, match="is no adapter's name"):
        check_name(name)


def test_a_path_stays_below_its_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root / "a" / "b", outside):
        directory.mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "inner").symlink_to(root / "a")
    assert directory_inside(str(root), "a/b") == root / "a" / "b"
    assert directory_inside(str(root), str(root / "a")) == root / "a"
    assert directory_inside(str(root), "inner/b") == root / "a" / "b"
    for path in ("..", ".", "", "../outside", "a/../../outside", str(outside), "link", "link/x", "/", "a\0b"):
        with pytest.raises(AdapterError, match=r"the adapter's path .* (is not below --lora-root|cannot be followed)"):
            directory_inside(str(root), path)


def test_without_a_root_every_path_is_refused() -> None:
    with pytest.raises(AdapterError, match="without --lora-root"):
        directory_inside("", "a")
