"""A faster Triton interpreter: what it looks up or computes anew for every operation is kept."""

import inspect
import math
from typing import Any

import numpy as np
from triton import language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def keep_lookups() -> None:
    """Makes the interpreter find Triton's builtins, NumPy's types, types and shapes of blocks once for a process."""
    packages = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    builtins = {
        package: [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
        for package in packages
    }
    np_types: dict[str, Any] = {}
    find_np_type = interpreter._get_np_dtype

    def interpreted(member: Any) -> Any:
        function = getattr(member, "__wrapped__", member)  # without the check that it is called in a kernel

        def call(*arguments: Any, _semantic: Any = None, **named: Any) -> Any:
            return function(*arguments, **named, _semantic=interpreter.interpreter_semantic)

        return call

    calls = {member: interpreted(member) for members in builtins.values() for _, member in members}

    def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins[package]:
            scope.set_attr(package, name, calls[member])

    patch_language = interpreter._patch_lang
    packages_of: dict[Any, list[Any]] = {}

    def patch_for(function: Any) -> Any:
        """Patches the packages that a function sees, unless the kernel that calls it has done so."""
        if function not in packages_of:
            seen = {id(value) for value in function.__globals__.values()}
            packages_of[function] = [package for package in (tl, tl.core) if id(package) in seen]
        first_of = ((package, *builtins[package][0]) for package in packages_of[function])
        if all(getattr(package, name) is not member for package, name, member in first_of):
            return interpreter._LangPatchScope()
        return patch_language(function)

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

    make_block_type = tl.block_type.__init__
    block_types: dict[tuple[Any, ...], dict[str, Any]] = {}
    block_shapes: dict[tuple[int, ...], Any] = {}  # types of one shape have the same object

    def init_block_type(self: Any, element_type: Any, shape: Any) -> None:
        plain = type(element_type) is tl.dtype and all(type(size) is int for size in shape)
        key = (id(element_type), *shape) if plain else ()
        if key not in block_types:
            make_block_type(self, element_type, shape)
            if not key:
                return
            self.shape = block_shapes.setdefault(tuple(self.shape.values), self.shape)
            block_types[key] = vars(self).copy()  # it holds the element's type, so that no other gets its id
        vars(self).update(block_types[key])

    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def init_tensor(self: Any, handle: Any, of_type: Any) -> None:
        shape = of_type.shape if of_type.is_block() else ()
        if shape not in shapes:
            shapes[shape] = (tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape]))
        self.numel, self.shape = shapes[shape]
        self.handle, self.type, self.dtype = handle, of_type, of_type.scalar

    is_equal = tl.dtype.__eq__
    broadcast = TritonSemantic.broadcast_impl_value

    def is_equal_type(self: Any, other: Any) -> bool:
        return self is other or is_equal(self, other)

    def splat(scalar: Any, like: Any) -> Any:
        data = np.full(tuple(like.shape.values), scalar.handle.data, np_type(scalar.handle.dtype))
        handle = interpreter.TensorHandle(data, scalar.handle.dtype.scalar)
        return tl.tensor(handle, like.with_element_ty(scalar.dtype))

    def broadcast_or_keep(self: Any, left: Any, right: Any) -> Any:
        if not left.type.is_block():
            return (splat(left, right.type), right) if right.type.is_block() else (left, right)
        if not right.type.is_block():
            return left, splat(right, left.type)
        return (left, right) if left.type.shape is right.type.shape else broadcast(self, left, right)

    # Without its debug mode it computes whether numbers overflow, and then does not look.
    assert not interpreter.interpreter_builder.options.debug
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter._patch_lang = patch_for
    tl.dtype.__eq__ = is_equal_type
    TritonSemantic.broadcast_impl_value = broadcast_or_keep
    tl.block_type.__init__ = init_block_type
    tl.tensor.__init__ = init_tensor
    tl.core._type_for_tuple_values = type_for_values
    interpreter._patch_builtin = patch_builtins
    interpreter._get_np_dtype = np_type
