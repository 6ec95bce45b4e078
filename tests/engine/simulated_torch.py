"""Lets PyTorch and Triton find a GPU that is simulated, and tells it of every access to memory.

Code under test runs as it is: PyTorch's operators compute on the CPU, Triton's kernels in their interpreter, which
knows the address of each load and store. Tensors made on `cuda` say that they are there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from tests.engine.simulated_device import CUDA, SimulatedDevice

UNFILLED = {"empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like"}
"""Operators that allocate memory and touch none."""
SHAPED_ALIKE = {*UNFILLED, "new_zeros", "zeros_like", "new_ones", "ones_like", "new_full", "full_like"}
"""Operators that take a tensor for its shape alone."""


class Operators(TorchDispatchMode):
    """Takes note of what PyTorch's operators read and write."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = self._device
        device.reclaim()
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        name = func.overloadpacket.__name__
        found = [(each.alias_info, value) for each, value in zip(func._schema.arguments, args, strict=False)]
        by_name = {each.name: each for each in func._schema.arguments}
        found += [(by_name[key].alias_info, value) for key, value in kwargs.items()]
        tensors = [(each, alias is not None and alias.is_write) for alias, value in found for each in _tensors(value)]
        outputs = _tensors(result)
        with _disable_current_modes():
            on_device = any(map(device.holds, [each for each, _ in tensors]))
            if on_device:
                if name == "copy_":
                    device.copies_from(args[1])
                if name in ("index", "index_put_"):  # by a mask, whose number of places is asked for
                    device.waits += any(each.dtype == torch.bool for each in _tensors(args[1]))
                with device.launch():
                    self._note(name, args, tensors, outputs, by_host=False)
            else:
                self._note(name, args, tensors, outputs, by_host=True)
        return result

    def _note(
        self, name: str, args: Any, tensors: list[tuple[Tensor, bool]], outputs: list[Tensor], *, by_host: bool
    ) -> None:
        device = self._device
        taken = _indexed(name, args)
        for tensor, written in [] if name in SHAPED_ALIKE else tensors:
            cells = device.cells_of(tensor, taken if tensor is args[0] else None)
            device.touch(tensor, cells, name, write=written, by_host=by_host)
        for output in outputs:
            device.allocated(output, f"the result of {name}", on_device=not by_host)
            if name not in UNFILLED and not any(output is tensor for tensor, _ in tensors):
                device.touch(output, device.cells_of(output), name, write=True, by_host=by_host)


def _indexed(name: str, args: Any) -> Callable[[Tensor], Tensor] | None:
    """Which elements of its first argument an operator touches that is given their numbers."""
    if name in ("index_select", "index_copy_", "index_fill_"):
        return lambda view: view.index_select(args[1], args[2])
    if name in ("index", "index_put_", "_index_put_impl_", "_unsafe_index"):
        places = tuple(slice(None) if each is None else each for each in args[1])
        return lambda view: view[places]
    return None


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


DEVICE_OF: Any = Tensor.device.__get__
READS_HERE = {Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.cpu}


class Pretence(TorchFunctionMode):
    """Lets tensors be made on `cuda`, pinned and copied there and back, though all of them are the host's."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = self._device
        if func == DEVICE_OF and device.holds(args[0]):
            return CUDA
        if func is Tensor.pin_memory:
            return self._copied(args[0], "pinned memory", on_device=False, pinned=True)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func in READS_HERE and device.holds(args[0]):
            if func is Tensor.cpu:
                return self._to(args[0], "cpu")
            device.current.synchronize()
        elif func in READS_HERE:
            device.touch(args[0], None, func.__name__, write=False, by_host=True)
        pinned = kwargs.pop("pin_memory", False)
        place = kwargs.get("device")
        there = place is not None and torch.device(place).type == "cuda"
        if there:
            kwargs["device"] = "cpu"
        result = func(*args, **kwargs)
        if there or pinned:
            with _disable_current_modes():
                self._made(result, func.__name__, on_device=there, pinned=pinned)
        return result

    def _made(self, result: Tensor, name: str, *, on_device: bool, pinned: bool) -> None:
        """Takes a tensor over from the host's own memory, where it was made."""
        device = self._device
        device._memory.pop(result.untyped_storage()._cdata, None)
        device.allocated(result, f"what {name} made", on_device=on_device, pinned=pinned)
        if on_device and name not in UNFILLED:
            with device.launch():
                device.touch(result, None, name, write=True, by_host=False)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = self._device
        place = next((each for each in (*args, kwargs.get("device")) if isinstance(each, torch.device | str)), None)
        kind = torch.device(place).type if place is not None else ""
        if kind == "cuda" and not device.holds(tensor):
            device.copies_from(tensor)
            return self._copied(tensor, "a copy on the device", on_device=True)
        if kind == "cpu" and device.holds(tensor):
            copy = self._copied(tensor, "a copy on the host", on_device=False)
            device.current.synchronize()
            return copy
        with torch._C.DisableTorchFunction():
            args = tuple("cpu" if each is place and place is not None else each for each in args)
            found: Tensor = tensor.to(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
            return found

    def _copied(self, tensor: Tensor, name: str, *, on_device: bool, pinned: bool = False) -> Tensor:
        """Copies on the current stream; a copy between pinned memory and the device is one launch."""
        device = self._device
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            result = tensor.clone(memory_format=torch.contiguous_format)
            device.allocated(result, name, on_device=on_device, pinned=pinned)
            by_host = not (on_device or device.holds(tensor))
            with device.launch():
                device.touch(tensor, device.cells_of(tensor), "a copy", write=False, by_host=by_host)
                device.touch(result, None, "a copy", write=True, by_host=by_host)
        return result


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    """Inside, PyTorch and Triton find a GPU that is simulated. What was made before is not watched."""
    device = SimulatedDevice()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", device.make_stream)
        patch.setattr(torch.cuda, "Event", device.make_event)
        patch.setattr(torch.cuda, "stream", device.on)
        patch.setattr(torch.cuda, "current_stream", lambda place=None: device.current)
        patch.setattr(torch.cuda, "synchronize", device.synchronize)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: device.record(tensor, stream))
        patch.setattr("engine.backends.triton.graphs.decode_graphs.record", lambda step, place, memory: (step, None))
        patch.setattr(torch.cuda, "get_device_name", lambda place: "a simulated GPU")
        patch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))
        patch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(multi_processor_count=4))
        _watch_kernels(device, patch)
        with Operators(device), Pretence(device):
            yield device
            device.reclaim()


def _watch_kernels(device: SimulatedDevice, patch: pytest.MonkeyPatch) -> None:
    """Has Triton's interpreter tell each load and store."""
    running: list[str] = []
    call, load, store = (
        GridExecutor.__call__,
        InterpreterBuilder.create_masked_load,
        InterpreterBuilder.create_masked_store,
    )

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), device.launch():
            running.append(self.fn.__name__)
            call(self, *args, **kwargs)
            running.pop()

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        device.touch_address(pointers.data[mask.data.astype(bool)], running[-1], write=False)
        return load(self, pointers, mask, *rest)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        device.touch_address(pointers.data[mask.data.astype(bool)], running[-1], write=True)
        return store(self, pointers, value, mask, *rest)

    patch.setattr(GridExecutor, "__call__", launched)
    patch.setattr(InterpreterBuilder, "create_masked_load", loaded)
    patch.setattr(InterpreterBuilder, "create_masked_store", stored)
