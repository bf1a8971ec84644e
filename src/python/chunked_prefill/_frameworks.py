# SPDX-License-Identifier: MIT
"""What is asked of the frameworks whose tensors come and go: memory, and views of it."""

from __future__ import annotations

from typing import Any, Protocol

from . import _core


class Framework(Protocol):
    """A buffer is (words) int32; offsets into it count int32 words."""

    def buffer(self, words: int, like: Any, stream: int | None = None) -> Any:
        """Memory on the device of `like`, from the framework's own allocator, for work on its
        current stream or on that with the handle `stream`."""

    def matrix(self, buffer: Any, offset: int, rows: int, columns: int) -> Any:
        """(rows, columns) int32, a view."""

    def vector(self, buffer: Any, offset: int, size: int, is_int64: bool) -> Any:
        """(size) int32 or int64, a view."""

    def stream(self, like: Any) -> int | None:
        """Handle of the current stream; None where DLPack tells it, or on the CPU."""

    def copy(self, tensor: Any) -> Any: ...


class Torch:
    """Memory on CUDA and views come by the short ways of the programs that torch.compile writes,
    where this torch has them: half as long as by `torch.empty` and `as_strided`, which a build
    waits for."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._int32 = torch.int32
        self._tells_stream = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
        try:
            from torch._C import _cuda_getDevice
            from torch._C._dynamo.guards import _empty_strided_cuda, _reinterpret_tensor
        except ImportError:
            self._current_device: Any = None
            self._view: Any = torch.as_strided
        else:
            self._current_device = _cuda_getDevice
            self._empty_on_current_device = _empty_strided_cuda
            self._view = _reinterpret_tensor

    def buffer(self, words: int, like: Any, stream: int | None = None) -> Any:
        if stream is not None and like.is_cuda:
            cuda = self._torch.cuda
            handle = _core.integer("stream", stream)
            with cuda.stream(cuda.ExternalStream(handle, like.device)):
                return self.buffer(words, like)
        if self._current_device and like.is_cuda and like.get_device() == self._current_device():
            return self._empty_on_current_device((words,), (1,), self._int32)
        return self._torch.empty(words, dtype=self._int32, device=like.device)

    def matrix(self, buffer: Any, offset: int, rows: int, columns: int) -> Any:
        return self._view(buffer, (rows, columns), (columns, 1), offset)

    def vector(self, buffer: Any, offset: int, size: int, is_int64: bool) -> Any:
        if is_int64:
            return buffer[offset : offset + 2 * size].view(self._torch.int64)
        return self._view(buffer, (size,), (1,), offset)

    def stream(self, like: Any) -> int | None:
        if self._tells_stream or not like.is_cuda:
            return None
        return int(self._torch.cuda.current_stream(like.device).cuda_stream)

    def copy(self, tensor: Any) -> Any:
        return tensor.clone()


class NumPy:
    def __init__(self) -> None:
        import numpy

        self._array_module: Any = numpy

    def buffer(self, words: int, like: Any, stream: int | None = None) -> Any:
        return self._array_module.empty(words, dtype="int32")

    def matrix(self, buffer: Any, offset: int, rows: int, columns: int) -> Any:
        return buffer[offset : offset + rows * columns].reshape(rows, columns)

    def vector(self, buffer: Any, offset: int, size: int, is_int64: bool) -> Any:
        if is_int64:
            return buffer[offset : offset + 2 * size].view("int64")
        return buffer[offset : offset + size]

    def stream(self, like: Any) -> int | None:
        return None

    def copy(self, tensor: Any) -> Any:
        return tensor.copy()


class StreamHandle:
    """One with CUDA's protocol for streams of other libraries."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CuPy(NumPy):
    def __init__(self) -> None:
        import cupy

        self._array_module = cupy

    def buffer(self, words: int, like: Any, stream: int | None = None) -> Any:
        with like.device:
            if stream is None:
                return super().buffer(words, like)
            with self._stream_of(_core.integer("stream", stream)):
                return super().buffer(words, like)

    def _stream_of(self, handle: int) -> Any:
        cuda = self._array_module.cuda
        if hasattr(cuda.Stream, "from_external"):  # CuPy 14, which warns of the other
            return cuda.Stream.from_external(StreamHandle(handle))
        return cuda.ExternalStream(handle)

    def stream(self, like: Any) -> int | None:
        return int(self._array_module.cuda.get_current_stream(like.device.id).ptr)


_makers: dict[str, type[Framework]] = {"torch": Torch, "numpy": NumPy, "cupy": CuPy}
_frameworks: dict[type, Framework] = {}


def framework_of(tensor: Any) -> Framework | None:
    """That of a tensor's class, or of the first of its base classes that has one."""
    kind = type(tensor)
    found = _frameworks.get(kind)
    if found is None:
        for base in kind.__mro__:
            maker = _makers.get(base.__module__.partition(".")[0])
            if maker is not None and hasattr(kind, "__dlpack__"):
                found = _frameworks[kind] = maker()
                break
    return found
