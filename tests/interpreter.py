"""A faster Triton interpreter: what it looks up or computes anew for every operation is kept."""

import inspect
from typing import Any

from triton import language as tl
from triton.runtime import interpreter


def keep_lookups() -> None:
    """Makes the interpreter look up Triton's builtins, NumPy's types and the types of shapes once for a process."""
    packages = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    builtins = {
        package: [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
        for package in packages
    }
    np_types: dict[str, Any] = {}
    find_np_type = interpreter._get_np_dtype

    def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins[package]:
            if getattr(package, name) is member:  # a kernel that calls this function has not replaced it yet
                interpreter._patch_attr(package, name, member, builder, scope)

    def np_type(triton_type: Any) -> Any:
        if triton_type.name not in np_types:
            np_types[triton_type.name] = find_np_type(triton_type)
        return np_types[triton_type.name]

    type_for_tuple = tl.core._type_for_tuple_values
    shape_types: dict[tuple[int, ...], Any] = {}

    def type_for_values(values: list[Any], fields: Any = None) -> Any:
        if fields is not None or not all(type(value) is int for value in values):
            return type_for_tuple(values, fields)
        key = tuple(values)
        if key not in shape_types:
            shape_types[key] = type_for_tuple(values)
        return shape_types[key]

    tl.core._type_for_tuple_values = type_for_values
    interpreter._patch_builtin = patch_builtins
    interpreter._get_np_dtype = np_type
