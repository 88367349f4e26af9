"""The process with the GPU: loads a module, launches its kernel as it is asked, and copies memory. Judges nothing.

It knows no expected output. Device code can write all memory of its context, and where the GPU reads host memory also
that of this process; so another process draws the inputs, measures the time and compares (`judge_process`).

Requests come as lines of JSON over a socket. `image` and `result` are shared memory: the arena of one launch as it is
copied to the GPU, and as it is copied back. A trial is `load`, then for each of its launches `launch` and `fetch`. The
judge writes the image of a launch when the one before it has ended and is fetched.
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
"""Memory that is written before each launch: it clears the cache, and keeps the clocks high."""
HEAT_S: Final = 0.02


class DeviceProcess:
    """State of one attempt."""

    def __init__(self, channel: socket.socket, module: bytes, image: int, result: int, library: str) -> None:
        self._channel, self._module = channel, module
        self._image_fd, self._result_fd = image, result
        self._cuda = CudaDriver(library)
        self._arena = ctypes.c_uint64()
        self._scratch = self._cuda.allocate(SCRATCH_BYTES)
        self._loaded: ctypes.c_void_p | None = None
        self._function: ctypes.c_void_p | None = None
        self._idle_since = time.monotonic()

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
        self._arena = self._cuda.allocate(request["size"])
        return {}

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the module: first before inputs are drawn, then for each trial, so that it keeps nothing of others."""
        if self._loaded is not None:
            self._cuda.call("cuModuleUnload", self._loaded)
        self._loaded, self._function = self._cuda.load(self._module, request["kernel"])
        if request["shared"]:
            self._cuda.allow_shared(self._function, request["shared"])
        return {}

    def do_launch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Copy the image to the GPU, and wait for the word `go`; then launch the kernel, or an empty operation.

        The cache is cleared after the copy, so that the kernel does not find its inputs there. The last clearing is in
        the judge's time, also in that of empty operations, and before that of the events: the kernel is queued while it
        runs, so that the events do not include the time of queueing.
        """
        cuda = self._cuda
        self._copy(request["size"])
        arguments, _values = self._packed(request["arguments"])
        self._heat()
        self._send({"ready": True})
        self._channel.recv(1)
        cuda.call("cuMemsetD8Async", self._scratch, ctypes.c_ubyte(0), ctypes.c_size_t(SCRATCH_BYTES), None)
        cuda.record(0)
        if request["empty"]:
            cuda.call("cuMemsetD8Async", self._scratch, ctypes.c_ubyte(0), ctypes.c_size_t(1), None)
        else:
            cuda.launch(self._function, request["dims"], request["shared"], arguments)
        cuda.record(1)
        cuda.synchronize()
        self._idle_since = time.monotonic()
        return {"device_ms": cuda.elapsed_ms()}

    def _copy(self, size: int) -> None:
        """Copy the image to the GPU."""
        with mmap.mmap(self._image_fd, size, access=mmap.ACCESS_COPY) as image:
            held = (ctypes.c_char * size).from_buffer(image)
            self._cuda.call("cuMemcpyHtoD", self._arena, held, ctypes.c_size_t(size))
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
        """Write the scratch memory once, and again for as long as the GPU was idle, at most `HEAT_S`."""
        now = time.monotonic()
        until = now + min(HEAT_S, now - self._idle_since)
        while True:
            self._cuda.call("cuMemsetD8", self._scratch, ctypes.c_ubyte(0), ctypes.c_size_t(SCRATCH_BYTES))
            self._cuda.synchronize()
            if time.monotonic() >= until:
                return

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
