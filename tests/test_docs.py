"""Pages name what exists: paths as they are written, modules, classes and functions, headings, codes of errors."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import imports_between_rooms

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
INTERNAL_PAGES = ["docs/design.md", "docs/extending.md"]
TOUR_STOP = re.compile(r"^\*\*(\d+)\. \[([\w./]+)\]\(\.\./([\w./]+)\)\*\*", re.MULTILINE)
MAX_TOUR_LINES = 12_000
PACKAGES = {folder.parent.name for folder in ROOT.glob("*/__init__.py")}
FILE_NAME = re.compile(r"`([\w./-]+\.(?:py|c|h|md))`")
FOLDER_NAME = re.compile(r"`([\w./-]+/)`")
MODULE_NAME = re.compile(rf"(?<![\w./-])((?:{'|'.join(sorted(PACKAGES))})(?:\.[a-z]\w*)+)(?![\w/(])")
SYMBOL_NAME = re.compile(r"`(\w*(?:[A-Z]\w*[a-z]|_)[\w.]*)(?:\(\))?`")
LINK = re.compile(r"\]\(([\w./]*)(?:#([\w-]+))?\)")
CHOSEN_BY_READER = "NAME"
"""Stands for a name in a path that the reader chooses: its folder must exist."""
DESIGN = (ROOT / "docs" / "design.md").read_text()
CODE_AT = {"invalid": 2, "unavailable": 1, "failed": 1}
"""Functions of gateway/errors.py that make errors, with the place of the code among their arguments."""


def is_there(name: str, *folders: Path) -> bool:
    """Returns whether a name is a path from the root or from one of these folders; a folder's ends with a slash."""
    for folder in (ROOT, *folders):
        path = (folder / name).parent if CHOSEN_BY_READER in name else folder / name
        if path.exists() and (CHOSEN_BY_READER in name or path.is_dir() == name.endswith("/")):
            return True
    return False


def named_paths(text: str) -> list[str]:
    return [*FILE_NAME.findall(text), *FOLDER_NAME.findall(text)]


def rooms_of(package: str) -> set[str]:
    return {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def sections() -> Iterator[tuple[str, str]]:
    """The sections of docs/design.md: the room that each is about, or its title, and its text.

    A part of a section whose title is no room belongs to the section.
    """
    room, text = "", ""
    for part in re.split(r"^(?=###? )", DESIGN, flags=re.MULTILINE):
        title = part.partition("\n")[0]
        if title.startswith("### ") and title[4:].partition("/")[0] not in PACKAGES:
            text += part
            continue
        yield room, text
        room, text = title.lstrip("# "), part
    yield room, text


def first_column(text: str) -> list[str]:
    """The files and folders that the first column of a section's tables names."""
    return [name for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) for name in named_paths(cell)]


def paragraphs(text: str) -> Iterator[tuple[str, list[str]]]:
    """The paragraphs and list items of a page, each with the paths that its section has named so far."""
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        named: list[str] = []
        for paragraph in re.split(r"\n\n|\n(?=(?:\d+\.|-) )", section):
            named += named_paths(paragraph) + re.findall(r"\]\(\.\./([\w./]+)\)", paragraph)
            yield paragraph, named


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def error_codes() -> set[str]:
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


@pytest.fixture(scope="module")
def source() -> str:
    files = [path for name in PACKAGES for kind in ("py", "c", "h") for path in (ROOT / name).rglob(f"*.{kind}")]
    return "\n".join(path.read_text() for path in files if path != Path(__file__))


@pytest.mark.parametrize("page", sorted({*PAGES} - {"docs/design.md"}))
def test_every_path_of_a_page_is_there(page: str) -> None:
    """A path is from the root, or from the folder of a path that its section names up to the paragraph's end."""
    wrong = []
    text = re.sub(r"\[`[^`]*`\]\([^)]*\)", "", (ROOT / page).read_text())  # links have a test of their own
    for paragraph, named in paragraphs(text):
        folders = [ROOT / name.rpartition("/")[0] for name in named if "/" in name and (ROOT / name).exists()]
        names = FILE_NAME.findall(paragraph)
        names += [name for name in FOLDER_NAME.findall(paragraph) if name.partition("/")[0] in PACKAGES]
        wrong += [name for name in names if not is_there(name, *folders)]
    assert wrong == []


@pytest.mark.parametrize("room", SECTIONS)
def test_every_path_of_a_section_is_there(room: str) -> None:
    """A path is from the root, or from the room that the section is about."""
    folders = [ROOT / room] if room.partition("/")[0] in PACKAGES else []
    assert all(folder.is_dir() for folder in folders)
    assert [name for name in named_paths(SECTIONS[room]) if not is_there(name, *folders)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    wrong = []
    for name, anchor in LINK.findall((ROOT / page).read_text()):
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in headings(path)):
            wrong.append(f"{name}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_module_of_a_page_is_there(page: str) -> None:
    names = [name.replace(".", "/") for name in MODULE_NAME.findall((ROOT / page).read_text())]
    assert [name for name in names if not (ROOT / name).is_dir() and not (ROOT / f"{name}.py").exists()] == []


@pytest.mark.parametrize("page", INTERNAL_PAGES)
def test_every_class_and_function_of_a_page_is_there(page: str, source: str) -> None:
    """A class, or a constant, is defined somewhere. Any other name with an underscore is a word of the sources."""
    defined = {*re.findall(r"^(?:class (\w+)|(\w+)(?::[^\n]*?)? = )", source, re.MULTILINE)}
    classes, words = {name for pair in defined for name in pair}, {*re.findall(r"\w+", source)}
    named = [name for name in SYMBOL_NAME.findall((ROOT / page).read_text()) if not name.endswith(".py")]
    names = {part for name in named for part in name.split(".")}
    assert sorted(name for name in names if name not in (classes if name[:1].isupper() else words)) == []


@pytest.mark.parametrize("package", ["infra", "gateway", "engine"])
def test_the_table_of_a_package_has_all_of_its_rooms(package: str) -> None:
    assert {name.rstrip("/") for name in first_column(SECTIONS[package]) if name.endswith("/")} == rooms_of(package)


@pytest.mark.parametrize("package", ["gateway", "engine"])
def test_the_table_of_a_package_is_in_the_order_of_imports(package: str) -> None:
    rooms = [name.removesuffix("/").removesuffix(".py") for name in first_column(SECTIONS[package])]
    imports, above = imports_between_rooms(package), set[str]()
    for room in rooms:
        assert imports[room] & {*rooms} <= above, f"{room} imports a room below it"
        above.add(room)


def test_the_tree_of_rooms_has_them_all() -> None:
    tree = re.findall(r"^(\w+)/ .*\n((?:  [\w/ ]+\n)*)", SECTIONS["The rooms"], re.MULTILINE)
    named = {package: set(lines.replace("/", " ").split()) for package, lines in tree}
    assert named.keys() == PACKAGES | {"docs"}
    for package in PACKAGES - {"tests"}:
        assert named[package] == rooms_of(package), package


def test_the_readmes_table_has_all_folders() -> None:
    table = (ROOT / "README.md").read_text().split("\n## The folders\n")[1].split("\n## ")[0]
    assert {name.rstrip("/") for name in first_column(table)} == PACKAGES | {"docs"}


def test_the_tour_can_be_read_in_a_weekend() -> None:
    """Its stops are numbered, exist, and are short enough together."""
    text = (ROOT / "docs" / "tour.md").read_text()
    stops = TOUR_STOP.findall(text)
    paths = [path for _, path, _ in stops]
    assert [int(number) for number, _, _ in stops] == list(range(1, len(stops) + 1))
    assert paths == [link for _, _, link in stops] and len(set(paths)) == len(paths) >= 40
    assert sum(len((ROOT / path).read_text().splitlines()) for path in paths) <= MAX_TOUR_LINES
    assert f"{len(stops)} files" in text


def test_the_tours_table_counts_the_lines_of_each_section() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    lengths: dict[str, list[int]] = {}
    for section in text.split("\n## ")[1:]:
        if stops := TOUR_STOP.findall(section):
            lengths[section.partition("\n")[0]] = [len((ROOT / path).read_text().splitlines()) for _, path, _ in stops]
    rows = re.findall(r"^\| \[([\w ]+)\]\(#[\w-]+\) \| (\d+) \| ([\d,]+) \|", text, re.MULTILINE)
    assert [(head, int(files)) for head, files, _ in rows] == [(head, len(found)) for head, found in lengths.items()]
    for head, _, lines in rows:
        assert sum(lengths[head]) == pytest.approx(int(lines.replace(",", "")), rel=0.1), head


def test_every_code_of_an_error_is_in_the_apis_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    codes = error_codes()
    assert {"invalid_value", "refused", "no_workers", "objective_out_of_reach", "deadline_exceeded"} <= codes
    assert sorted(code for code in codes if f"`{code}`" not in page) == []
