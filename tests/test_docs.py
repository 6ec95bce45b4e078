"""Every file that a page names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`([\w./]+\.(?:py|c|h|md))`")
LINKED = re.compile(r"\]\(([\w./]+)(?:#[\w-]+)?\)")
HOMES = [folder.parent for folder in ROOT.glob("*/__init__.py")] + [ROOT / "docs"]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The paths of our files, from every folder on: a page may name a file of the room that it is about."""
    files = [path.relative_to(ROOT) for home in HOMES for path in home.rglob("*.*")]
    return {"/".join(file.parts[start:]) for file in files for start in range(len(file.parts))}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str, names: set[str]) -> None:
    text = (ROOT / page).read_text().replace("NAME.py", "")  # a name that the reader chooses
    assert set(NAMED.findall(text)) - names == set()
    assert [link for link in LINKED.findall(text) if not (ROOT / page).parent.joinpath(link).exists()] == []
