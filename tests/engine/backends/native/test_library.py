"""The ctypes structures of library.py have the fields of the C headers, in their order and of their kinds."""

import ctypes
import re
from pathlib import Path

import pytest

from engine.backends.native import library

SOURCES = Path(library.__file__).with_name("csrc")
KINDS: dict[type, str] = {
    ctypes.c_int64: "int64_t",
    ctypes.c_double: "double",
    ctypes.c_char_p: "pointer",
    ctypes.c_void_p: "pointer",
}
MIRRORED = {
    name: each
    for name, each in vars(library).items()
    if isinstance(each, type) and issubclass(each, ctypes.Structure) and each is not ctypes.Structure
}


def fields_of_source(struct: str) -> list[tuple[str, str]]:
    """Name and kind of each field of a C struct: `int64_t`, `double`, `pointer`, or the name of a nested struct."""
    text = "".join(path.read_text() for path in sorted(SOURCES.iterdir()))
    body = re.search(rf"^struct {struct} \{{(.*?)^\}}", re.sub(r"/\*.*?\*/", "", text, flags=re.S), re.S | re.M)
    assert body is not None, f"no struct {struct}"
    fields = []
    for declaration in filter(None, (each.strip() for each in body[1].split(";"))):
        base, names = re.fullmatch(r"(?:const )?((?:struct )?\w+) (.*)", declaration, re.S).groups()  # type: ignore[union-attr]
        for name in names.split(","):
            kind = "pointer" if "*" in name else base.removeprefix("struct ")
            fields.append((name.replace("*", " ").replace("const", " ").split()[-1], kind))
    return fields


def kind_of(kind: type) -> str:
    if issubclass(kind, ctypes.Structure):
        return struct_of(kind)
    return KINDS.get(kind, "pointer")


def struct_of(mirror: type) -> str:
    found = re.search(r"`struct (\w+)`", mirror.__doc__ or "")
    assert found is not None, f"{mirror.__name__} names no struct"
    return found[1]


@pytest.mark.parametrize("mirror", MIRRORED.values(), ids=MIRRORED)
def test_fields_are_those_of_the_header(mirror: type[ctypes.Structure]) -> None:
    found = [(name, kind_of(kind)) for name, kind, *_ in mirror._fields_]
    assert found == fields_of_source(struct_of(mirror))
