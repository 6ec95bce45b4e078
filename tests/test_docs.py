"""Pages name what is there: files and folders in the room that they speak of, and every code of an error."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`([\w./]+\.(?:py|c|h|md))`")
LINKED = re.compile(r"\]\(([\w./]+)(?:#[\w-]+)?\)")
TOUR_STOP = re.compile(r"^\*\*(\d+)\. \[([\w./]+)\]\(\.\./([\w./]+)\)\*\* \((\d+) lines\)", re.MULTILINE)
MAX_TOUR_LINES = 12_000
PACKAGES = {folder.parent.name for folder in ROOT.glob("*/__init__.py")}
HOMES = [ROOT / name for name in PACKAGES] + [ROOT / "docs"]
DESIGN = (ROOT / "docs" / "design.md").read_text()
CODE_AT = {"invalid": 2, "unavailable": 1, "failed": 1}
"""Functions of gateway/errors.py that make errors, with the place of the code among their arguments."""


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The paths of our files, from every folder on: a page may name a file of the room that it is about."""
    return suffixes(*HOMES)


def suffixes(*folders: Path) -> set[str]:
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.*")]
    return {"/".join(file.parts[start:]) for file in files for start in range(len(file.parts))}


def rooms_of(package: str) -> set[str]:
    """The folders of a package that have modules."""
    return {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def sections() -> Iterator[tuple[str, str]]:
    """The sections of docs/design.md that are about one package, or about a room of it: its path, and its text."""
    for title, text in re.findall(r"^###? (.*)\n((?:(?!###? ).*\n)*)", DESIGN, re.MULTILINE):
        if title.partition("/")[0] in PACKAGES:
            assert (ROOT / title).is_dir(), f"docs/design.md has a section about {title}"
            yield title, text
    others = DESIGN.split("\n## The other rooms\n")[1].split("\n## ")[0]
    for title, text in re.findall(r"^\*\*(\w+)/\*\*(.*?)(?=^\*\*\w+/\*\*|\Z)", others, re.MULTILINE | re.DOTALL):
        yield title, text


def first_column(text: str) -> list[list[str]]:
    """The files and folders that the first column of a section's tables names, row by row."""
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    rows = [re.findall(r"`([\w./]+(?:\.py|/))`", cell) for cell in cells]
    return [row for row in rows if row]


def error_codes() -> set[str]:
    """The codes that the gateway's sources give to errors."""
    found = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                given += node.args[CODE_AT[name] : CODE_AT[name] + 1] if name in CODE_AT else []
            elif isinstance(node, ast.FunctionDef) and node.name in CODE_AT:
                given = [*node.args.defaults]
            else:
                continue
            found |= {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


SECTIONS = dict(sections())


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str, names: set[str]) -> None:
    text = (ROOT / page).read_text().replace("NAME.py", "")  # a name that the reader chooses
    assert set(NAMED.findall(text)) - names == set()
    assert [link for link in LINKED.findall(text) if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("room", SECTIONS)
def test_a_section_names_files_of_its_own_package(room: str) -> None:
    there = suffixes(ROOT / room.partition("/")[0])
    assert [name for name in NAMED.findall(SECTIONS[room]) if name not in there and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("room", SECTIONS)
def test_tables_of_a_room_name_what_is_in_it(room: str) -> None:
    """A name in the first column is a path in the room, or stands in the folder of the one before it."""
    for row in first_column(SECTIONS[room]):
        folder = ROOT / room
        for name in row:
            place = folder / name if (folder / name).exists() else ROOT / room / name
            assert place.exists() and place.is_dir() == name.endswith("/"), f"{room} has no {name}"
            folder = place.parent


@pytest.mark.parametrize("package", ["contracts", "infra", "checkpoints", "gateway", "engine"])
def test_tables_of_a_package_have_all_of_its_rooms(package: str) -> None:
    named = {name.rstrip("/") for row in first_column(SECTIONS[package]) for name in row if name.endswith("/")}
    assert named == rooms_of(package)


def test_the_tree_of_rooms_has_them_all() -> None:
    tree = re.findall(r"^(\w+)/ .*\n((?:  [\w/ ]+\n)*)", DESIGN.split("```\n")[3], re.MULTILINE)
    named = {package: set(lines.replace("/", " ").split()) for package, lines in tree}
    assert named.keys() == PACKAGES | {"docs"}
    for package in PACKAGES - {"tests"}:
        assert named[package] == rooms_of(package), package


def test_the_readmes_table_has_all_folders() -> None:
    table = (ROOT / "README.md").read_text().split("\n## The folders\n")[1].split("\n## ")[0]
    assert {name.rstrip("/") for row in first_column(table) for name in row} == PACKAGES | {"docs"}


def test_the_tour_can_be_read_in_a_weekend() -> None:
    """Its stops are numbered, exist, and are short enough together; the sum at its end is that of its numbers."""
    text = (ROOT / "docs" / "tour.md").read_text()
    stops = TOUR_STOP.findall(text)
    paths = [path for _, path, _, _ in stops]
    assert [int(number) for number, _, _, _ in stops] == list(range(1, len(stops) + 1))
    assert paths == [link for _, _, link, _ in stops] and len(set(paths)) == len(paths) >= 40
    assert sum(len((ROOT / path).read_text().splitlines()) for path in paths) <= MAX_TOUR_LINES
    assert f"**Sum: {len(stops)} files, {sum(int(lines) for _, _, _, lines in stops):,} lines.**" in text


def test_every_code_of_an_error_is_in_the_apis_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    codes = error_codes()
    assert {"invalid_value", "refused", "no_workers", "objective_out_of_reach", "deadline_exceeded"} <= codes
    assert sorted(code for code in codes if f"`{code}`" not in page) == []
