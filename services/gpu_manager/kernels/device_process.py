"""The process with the GPU: loads a module, launches its kernel as it is asked, and copies memory. Judges nothing.

It knows no expected output. Device code can write all memory of its context, and where the GPU reads host memory also
that of this process; so another process draws the inputs, measures the time and compares (`judge_process`).

Requests come as lines of JSON over a socket. `image` and `result` are shared memory: the arena as it is copied to the
GPU, and as it is copied back.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import time
from typing import Any, Final

from services.gpu_manager.kernels.driver import CudaDriver, CudaError

SCRATCH_BYTES: Final = 256 << 20
"""Memory that is written before each trial: it clears the cache, and raises the clocks."""
HEAT_S: Final = 0.02


class DeviceProcess:
    """State of one attempt."""

    def __init__(self, channel: socket.socket, module: bytes, image: int, result: int, library: str) -> None:
        self._channel, self._module = channel, module
        self._image_fd, self._result_fd = image, result
        self._cuda = CudaDriver(library)
        self._arena = ctypes.c_uint64()
        self._size = 0
        self._scratch = self._cuda.allocate(SCRATCH_BYTES)
        self._loaded: ctypes.c_void_p | None = None
        self._function: ctypes.c_void_p | None = None

    def serve(self) -> None:
        """Answer requests until the other end closes."""
        reader = self._channel.makefile("rb")
        self._send(self._cuda.describe())
        for line in reader:
            request = json.loads(line)
            try:
                self._send(getattr(self, f"do_{request['do']}")(request))
            except CudaError as error:
                self._send({"error": str(error), "call": error.call, "code": error.code})
                os._exit(3)  # errors of a device stay in the process

    def _send(self, answer: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def do_probe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Use the GPU without a module: it works."""
        del request
        self._heat()
        return {}

    def do_reserve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Allocate the largest arena before the sample is loaded: a lack of memory is none of its faults."""
        self._reserve(request["size"])
        return {}

    def _reserve(self, size: int) -> None:
        if self._size < size:
            if self._size:
                self._cuda.call("cuMemFree", self._arena)
            self._arena, self._size = self._cuda.allocate(size), size

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the module once, before inputs are drawn."""
        self._load(request)
        return {}

    def _load(self, request: dict[str, Any]) -> ctypes.c_void_p:
        if self._loaded is not None:
            self._cuda.call("cuModuleUnload", self._loaded)
        self._loaded, function = self._cuda.load(self._module, request["kernel"])
        if request["shared"]:
            self._cuda.allow_shared(function, request["shared"])
        return function

    def do_warm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Copy set 0 to the GPU and launch it as warm-up. The module is loaded anew: it keeps nothing of a trial."""
        cuda, size = self._cuda, request["size"]
        self._reserve(size)
        self._function = self._load(request)
        self._copy(0, request["first"])
        cuda.launch(self._function, request["dims"], request["shared"], self._packed(request["set"])[0])
        cuda.synchronize()
        return {}

    def do_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        """Copy all other sets to the GPU, and wait for the word `go`; then launch them."""
        cuda = self._cuda
        self._copy(request["first"], request["size"])
        sets = [self._packed(one) for one in request["sets"]]
        self._heat()
        self._send({"ready": True})
        self._channel.recv(1)
        cuda.record(0)
        if request["empty"]:
            for _ in sets:
                cuda.call("cuMemsetD8Async", self._scratch, ctypes.c_ubyte(0), ctypes.c_size_t(1), None)
        else:
            for arguments, _ in sets:
                cuda.launch(self._function, request["dims"], request["shared"], arguments)
        cuda.record(1)
        cuda.synchronize()
        return {"device_ms": cuda.elapsed_ms()}

    def _copy(self, begin: int, end: int) -> None:
        """Copy a part of the image to the GPU."""
        with mmap.mmap(self._image_fd, end, access=mmap.ACCESS_COPY) as image:
            held = (ctypes.c_char * (end - begin)).from_buffer(image, begin)
            to = ctypes.c_uint64(self._arena.value + begin)
            self._cuda.call("cuMemcpyHtoD", to, held, ctypes.c_size_t(end - begin))
            del held

    def do_fetch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Copy the arena back."""
        size = request["size"]
        with mmap.mmap(self._result_fd, size) as result:
            held = (ctypes.c_char * size).from_buffer(result)
            self._cuda.call("cuMemcpyDtoH", held, self._arena, ctypes.c_size_t(size))
            del held
        return {}

    def _heat(self) -> None:
        until = time.monotonic() + HEAT_S
        while time.monotonic() < until:
            self._cuda.call("cuMemsetD8", self._scratch, ctypes.c_ubyte(0), ctypes.c_size_t(SCRATCH_BYTES))
            self._cuda.synchronize()

    def _packed(self, arguments: list[list[Any]]) -> tuple[Any, list[Any]]:
        """Return the array of pointers that a launch takes, and the values that it points to."""
        values: list[Any] = []
        for kind, value in arguments:
            if kind == "offset":
                values.append(ctypes.c_uint64(self._arena.value + value))
            else:
                values.append(ctypes.create_string_buffer(bytes.fromhex(value), len(value) // 2))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        return pointers, values
