"""Caches the launches that wrappers prepare for a shape: a step calls them hundreds of times with few shapes."""

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

Shape = ParamSpec("Shape")
Found = TypeVar("Found")
_caches: list[Any] = []


def by_shape(prepare: Callable[Shape, Found]) -> Callable[Shape, Found]:
    """Decorates a function of hashable arguments, of which a model has few: none that follow from a step's tokens."""
    cached: Any = cache(prepare)
    _caches.append(cached)
    return cached  # type: ignore[no-any-return]


def forget_shapes() -> None:
    """Has everything prepared again, since configs or the device have changed."""
    for each in _caches:
        each.cache_clear()
