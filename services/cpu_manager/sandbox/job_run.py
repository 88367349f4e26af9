"""One running job on the manager's side: requests, packets, timers, end. Uses no process and no thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from services.cpu_manager.sandbox.capture import OutputCapture
from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.meter import SAMPLE_S, Meter
from services.cpu_manager.sandbox.protocol import EndedBy, Exit, JobCut, Limits
from services.cpu_manager.sandbox.spares import Spare
from services.cpu_manager.sandbox.usage import Usage, UsageSampler
from shared.walls import syscalls

_START_S: Final = 30.0
"""Seconds after which a cell that has not started its program is lost."""
_FETCH_S: Final = 60.0
"""Seconds after the wall limit in which the files of an ended program must arrive; else they are lost."""
_STOP_S: Final = 10.0
"""Seconds after which a killed cell that still exists is reported lost: the kernel is busy freeing its memory."""
_READ_OUTPUT_S: Final = 0.003
"""Output of shorter programs is read once, at the end: most never fill a pipe."""
REPORT_BYTES: Final = 1 << 20


class JobRun:
    """Run of one job in its cell, from the start request to its `Exit`. All work happens in callbacks of the loop."""

    def __init__(
        self,
        spare: Spare,
        limits: Limits,
        sampler: UsageSampler,
        cores: int,
        enough: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._spare = spare
        self._control = spare.control
        self._slot = spare.slot
        self._limits = limits
        self._meter = Meter(sampler, spare, limits, cores)
        self._enough = enough
        self._cell_reusable = False
        self._closed = False
        """True if the control socket is not read any more, because its cell has ended."""
        self._cause: EndedBy | None = None
        self._detail = ""
        self._started_at = 0.0
        self._ended: wire.EndedFrame | None = None
        self._files: dict[str, bytearray] = {}
        self._file = bytearray()
        self._captures: list[OutputCapture] = []
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self, requests: tuple[bytes, bytes], stdin: int, program_file: int, *, reports: bool) -> Exit:
        """Send both requests and wait for the end. Cancelled: kill the tree, wait for its end, raise with a JobCut."""
        try:
            self._loop.add_reader(self._control.fileno(), self._readable)
            self._send(requests, stdin, program_file, reports=reports)
            self._after(_START_S, self._start_timed_out)
            self._after(_READ_OUTPUT_S, self._read_output)
            await asyncio.shield(self._over)  # a cancellation must not end the wait for the tree's end
        except asyncio.CancelledError as error:
            self._kill("cancelled", "cancelled by the caller")
            await self._until_over()
            error.args = (*error.args, JobCut(self._cpu_s()))
            raise
        except OSError as error:
            self._kill("lost", f"the cell accepts no request: {error}")
            await self._until_over()
        finally:
            outputs = self._release()
        return self._exit(outputs)

    async def _until_over(self) -> None:
        """Wait for the tree's end, through further cancellations. `_kill_timed_out` bounds the wait."""
        while not self._over.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._over)

    def _send(self, requests: tuple[bytes, bytes], stdin: int, program_file: int, *, reports: bool) -> None:
        writers: list[int] = []
        try:
            for limit in (self._limits.output_bytes, self._limits.output_bytes, REPORT_BYTES)[: 3 if reports else 2]:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                writers.append(writer)
                os.set_blocking(reader, False)
                self._captures.append(OutputCapture(self._loop, reader, limit))
                if self._slot.owner >= 0:
                    os.fchown(writer, self._slot.owner, self._slot.owner)  # the program may open /dev/stdout again
            stdout, stderr, report = (*writers, stdin)[:3]
            wire.send(self._control, requests[0], (stdin, stdout, stderr, program_file, report))
            wire.send(self._control, requests[1])
        finally:
            for writer in writers:
                os.close(writer)

    @property
    def started(self) -> bool:
        """True if the program's own process has run. Before that, no part of the job has run."""
        return self._started_at > 0

    @property
    def started_at(self) -> float:
        """Start of the program, on the monotonic clock; 0 before."""
        return self._started_at

    @property
    def reusable(self) -> bool:
        """True if the program ended by itself and its cell can run another one."""
        return self._cell_reusable and self._cause is None and not self._meter.usage.out_of_memory

    def _after(self, seconds: float, then: object) -> None:
        assert callable(then)
        self._timers.append(self._loop.call_later(seconds, then))

    def _readable(self) -> None:
        """Read all available packets."""
        while not self._over.done():
            try:
                packet, descriptors = wire.receive(self._control, 1)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            self._handle(packet, descriptors)

    def _handle(self, packet: bytes, descriptors: list[int]) -> None:
        kind = packet[:1]
        if kind == wire.READY and descriptors:
            self._spare.pidfd = descriptors[0]
            if self._cause:
                self._signal()
        elif kind == wire.STARTED:
            self._started(wire.unpack_started(packet))
        elif kind == wire.FAILED:
            if self._cause is None:
                self._cause, self._detail = "lost", packet[1:].decode(errors="replace")
        elif kind == wire.ENDED:
            self._ended = wire.EndedFrame.unpack(packet)
            if self._ended.excess_tasks and self._cause is None:
                detail = f"ran {self._ended.excess_tasks} processes, allowed {self._limits.pids} (init counted)"
                self._cause, self._detail = "signal", detail
            self._meter.sample()
            self._spare.earlier_cpu_s += self._ended.cpu_s
        elif kind == wire.FILE:
            name, _ = wire.unpack_file(packet)
            self._file = self._files.setdefault(name, bytearray())
        elif kind == wire.DATA:
            self._file += packet[1:]
        elif kind == wire.REUSABLE:
            self._cell_reusable = True
            self._end()
        else:  # DONE, or the end of a cell that could not send DONE
            if kind != wire.DONE and self._ended and self._cause is None:
                self._cause, self._detail = "lost", "the cell died before it had sent all files"
            self._finish()

    def _started(self, at: float) -> None:
        self._started_at = at
        for timer in self._timers[:1]:
            timer.cancel()
        self._after(self._limits.wall_s, self._wall_timed_out)
        self._after(SAMPLE_S, self._sample)

    def _finish(self) -> None:
        if self._ended is None and self._meter.exact:
            self._meter.sample()  # the memory limit may have killed init itself
        if self._ended is None and self._spare.pidfd >= 0 and not self._init_ended():
            # Init has ended or is ending without a report. Its tree has ended when its descriptor becomes readable.
            self._closed = True
            self._loop.remove_reader(self._control.fileno())
            self._loop.add_reader(self._spare.pidfd, self._end)
            self._after(_STOP_S, self._kill_timed_out)
            return
        self._end()

    def _init_ended(self) -> bool:
        try:
            syscalls.signal_pidfd(self._spare.pidfd, 0)
        except OSError:
            return True
        return False

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _read_output(self) -> None:
        for capture in self._captures:
            capture.start()

    def _read_pending(self) -> None:
        """Read the packets that arrived before a timer's callback.

        A manager that was stopped, or that got no CPU, runs due timers before it reads the socket. Reports that the
        cell sent in time must count.
        """
        if not self._closed:
            self._readable()

    def _wall_timed_out(self) -> None:
        self._read_pending()
        if self._over.done():
            return
        if self._ended:  # in time; its files are still arriving
            self._after(_FETCH_S, self._fetch_timed_out)
            return
        self._kill("wall-limit", f"still running after {self._limits.wall_s:g} s")

    def _start_timed_out(self) -> None:
        self._read_pending()
        if not self._started_at:
            self._kill("lost", f"the cell had not started after {_START_S:g} s")

    def _fetch_timed_out(self) -> None:
        self._read_pending()
        if not self._over.done():
            self._kill("lost", f"its files had not arrived {_FETCH_S:g} s later")

    def _kill_timed_out(self) -> None:
        self._cause, self._detail = "lost", f"the cell had not ended {_STOP_S:g} s after it was killed"
        self._end()

    def _sample(self) -> None:
        """Measure the tree's usage."""
        if self._cause or self._ended or self._over.done():
            return
        if self._meter.exact:
            self._meter.sample()
            self._check_limits(0.0)
            return
        try:
            sampling = self._meter.sample_in_thread()
        except (OSError, RuntimeError):  # no descriptor or no thread is left
            self._meter.sample()
            self._check_limits(SAMPLE_S)
        else:
            sampling.add_done_callback(partial(self._sampled, self._loop.time()))

    def _sampled(self, started: float, sampling: asyncio.Future[Usage]) -> None:
        self._meter.add(sampling)
        if not (self._cause or self._ended or self._over.done()):
            self._check_limits(self._loop.time() - started)

    def _check_limits(self, took_s: float) -> None:
        """Kill the tree if it exceeds a limit; else schedule the next sample for the time when it could reach one."""
        if breach := self._meter.breach():
            self._kill(*breach)
        elif self._enough and self._enough(bytes(self._captures[-1].kept)):
            self._kill("decided", "its report decides")
        else:
            self._after(self._meter.next_sample_s(took_s), self._sample)

    def _kill(self, cause: EndedBy, detail: str) -> None:
        if self._cause is None:
            self._cause, self._detail = cause, detail
        if not self._over.done():
            self._signal()
            self._after(_STOP_S, self._kill_timed_out)
            self._meter.sample()

    def _signal(self) -> None:
        """SIGKILL to pid 1 ends its namespace. On the Landlock rung init gets SIGTERM and ends its domain."""
        if self._spare.pidfd >= 0:
            in_namespace = self._slot.plan.home == "/tmp"
            with contextlib.suppress(ProcessLookupError):
                syscalls.signal_pidfd(self._spare.pidfd, signal.SIGKILL if in_namespace else signal.SIGTERM)

    def _release(self) -> list[bytes]:
        for timer in self._timers:
            timer.cancel()
        self._loop.remove_reader(self._control.fileno())
        if self._spare.pidfd >= 0:
            self._loop.remove_reader(self._spare.pidfd)
        return [capture.finish() for capture in self._captures]

    def _cpu_s(self) -> float:
        """CPU seconds of the tree, as far as measured."""
        ended, usage = self._ended, self._meter.usage
        return usage.cpu_s if self._meter.exact or not ended else max(ended.cpu_s + ended.init_cpu_s, usage.cpu_s)

    def _exit(self, outputs: list[bytes]) -> Exit:
        ended, usage = self._ended, self._meter.usage
        ended_by, code, number = self._verdict()
        wall_s = (ended.at if ended else time.monotonic()) - self._started_at if self.started else 0.0
        stdout, stderr, report = (*outputs, b"", b"", b"")[:3]
        truncated = [capture.truncated for capture in self._captures] + [False, False]
        exact = self._meter.exact
        return Exit(
            ended_by=ended_by,
            exit_code=code,
            signal=number,
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=truncated[0],
            stderr_truncated=truncated[1],
            report=report,
            files={name: bytes(content) for name, content in self._files.items()},
            wall_s=wall_s,
            cpu_s=self._cpu_s(),
            peak_memory_bytes=usage.peak_bytes if exact or not ended else max(ended.peak_bytes, usage.peak_bytes),
            detail=self._detail,
        )

    def _verdict(self) -> tuple[EndedBy, int | None, int | None]:
        ended, usage, limits = self._ended, self._meter.usage, self._limits
        if self._cause:
            return self._cause, None, signal.SIGKILL if self._cause == "signal" else None
        if usage.out_of_memory:
            self._detail = f"used more than {limits.memory_bytes} bytes of memory"
            return "memory-limit", None, None
        if ended is None or not self._started_at:
            self._detail = "the cell or its zygote ended"
            return "lost", None, None
        if max(usage.cpu_s if self._meter.exact else 0.0, ended.cpu_s + ended.init_cpu_s) > limits.cpu_s:
            return "cpu-limit", None, None
        if ended.at - self._started_at > limits.wall_s:
            return "wall-limit", None, None
        code = os.waitstatus_to_exitcode(ended.status)
        return ("exit", code, None) if code >= 0 else ("signal", None, -code)
