"""CUDA's driver interface, as far as one kernel needs it, by ctypes. Standard library alone: it runs behind walls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

_NAMES: Final = {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuCtxCreate", "cuCtxDestroy",
                 "cuEventDestroy", "cuDeviceTotalMem"}  # fmt: skip
"""Functions whose present version has the suffix `_v2`."""
_MAJOR, _MINOR, _PAGEABLE, _MULTIPROCESSORS = 75, 76, 88, 16
_MALLOC_HEAP: Final = 0x02
_PRINTF_FIFO: Final = 0x01


class CudaError(Exception):
    """A call of the driver has failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call, self.code, self.name = call, code, name


class CudaDriver:
    """One context on the first visible GPU. An error of the device is sticky, so the process ends after it."""

    def __init__(self, library: str) -> None:
        self._cuda = ctypes.CDLL(library)
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self._device = device.value
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        for limit in (_MALLOC_HEAP, _PRINTF_FIFO):  # memory in which a kernel could keep results between launches
            self._cuda.cuCtxSetLimit(limit, ctypes.c_size_t(0))
        self._events = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in self._events:
            self.call("cuEventCreate", ctypes.byref(event), 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            CudaError: it has failed.
        """
        function = getattr(self._cuda, f"{name}_v2" if name in _NAMES else name)
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"?").decode())

    def describe(self) -> dict[str, Any]:
        """Return what is known of the GPU and the driver."""
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self.call("cuDeviceGetName", name, 256, self._device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = self.attribute(_MAJOR), self.attribute(_MINOR)
        return {
            "device": name.value.decode(),
            "capability": f"sm_{major}{minor}",
            "driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "reads_host_memory": bool(self.attribute(_PAGEABLE)),
        }

    def attribute(self, number: int) -> int:
        """Return an attribute of the GPU."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def load(self, image: bytes, kernel: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Load a module. Its variables have their first values. Return the module and its function."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image + b"\0"))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return module, function

    def allow_shared(self, function: ctypes.c_void_p, size: int) -> None:
        """Allow a function this much dynamic shared memory."""
        self.call("cuFuncSetAttribute", function, 8, size)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Return device memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def record(self, which: int) -> None:
        """Record one of two events."""
        self.call("cuEventRecord", self._events[which], None)

    def elapsed_ms(self) -> float:
        """Return the milliseconds between the two events."""
        took = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(took), *self._events)
        return float(took.value)

    def launch(self, function: ctypes.c_void_p | None, dims: Sequence[int], shared: int, arguments: Any) -> None:
        """Launch a kernel on the default stream. `dims`: grid and block, three each."""
        self.call("cuLaunchKernel", function, *dims, shared, None, arguments, None)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.call("cuCtxSynchronize")
