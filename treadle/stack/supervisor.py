"""Starts a stack, keeps it running, stops it. One asyncio loop; the main thread starts all processes.

Nothing outlives the supervisor. It stops the services first, then the servers they use: with a signal, then by force.
Orphans of its children become its own children (it is a *subreaper*). It kills those of an ended service then, and all
others at the end. If it is killed itself, the kernel signals its children, and the next ``treadle up`` or ``down`` ends
what is recorded in ``run/state.json``.
"""

import asyncio
import os
import signal
import traceback
from collections.abc import Coroutine, Sequence
from itertools import groupby

from shared.runtime.identity import identify
from shared.runtime.stack_state import Phase, ServiceState, StackError, StackState, State
from treadle.stack.append_only import explanation
from treadle.stack.child import Child
from treadle.stack.logs import ServiceLogs
from treadle.stack.orphans import Orphans
from treadle.stack.plan import ProcessSpec, StackPlan
from treadle.stack.process import adopt_orphans
from treadle.stack.publishing import Publisher
from treadle.stack.service_runner import Backoff, ServiceRunner

PREPARE_TIMEOUT_S = 300.0
LAST_PASSES = 200
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StackSupervisor:
    """One run of a stack, from ``run`` to the end of its last process."""

    def __init__(self, plan: StackPlan, logs: ServiceLogs, *, prepare_only: bool = False) -> None:
        """`prepare_only`: stop when the stores are prepared and what the plan starts is up."""
        self._plan = plan
        self._prepare_only = prepare_only
        self._logs = logs
        self._runners: list[ServiceRunner] = []
        self._tasks: dict[ServiceRunner, asyncio.Task[None]] = {}
        self._prepare: Child | None = None
        self._phase = Phase.STARTING
        self._error = ""
        self._stop_requested = asyncio.Event()
        self._urgent = asyncio.Event()
        self._identity = identify(os.getpid())
        self._orphans = Orphans(plan.home.root)
        self._publisher = Publisher(plan.home.root, self._log)

    async def run(self) -> int:
        """Start the stack, run it until a stop signal, stop it. Return 0, or 1 if it did not come up or failed.

        The caller holds the lock of the home and has ended what an earlier supervisor left.
        """
        adopt_orphans()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child_ended)
        try:
            await self._run_until_stop(self._start_all())
            if self._phase is Phase.UP and not self._prepare_only:
                await self._stop_requested.wait()
        except StackError as error:
            self._fail(f"the stack did not come up: {error}")
        finally:
            await self._shut_down()
        return 1 if self._error else 0

    async def _run_until_stop(self, start: Coroutine[None, None, None]) -> None:
        up = asyncio.create_task(start, name="bring up")
        stop = asyncio.ensure_future(self._stop_requested.wait())
        await asyncio.wait([up, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if up.done():
            up.result()
        else:
            up.cancel()
            await asyncio.wait([up])

    async def _start_all(self) -> None:
        await self._start(self._plan.servers)
        await self._prepare_stores()
        await self._start(self._plan.services)
        self._phase = Phase.UP
        self._publish()
        urls = ", ".join(f"{spec.name} {spec.url}" for spec in self._plan.services)
        self._log(f"the stack is up: {urls}. Ctrl-C or treadle down stops it")

    async def _start(self, specs: Sequence[ProcessSpec]) -> None:
        runners = [
            ServiceRunner(
                spec, log_line=self._logs.line, changed=self._publish, backoff=Backoff(longest_s=spec.longest_pause_s)
            )
            for spec in specs
        ]
        self._runners += runners
        for runner in runners:
            self._tasks[runner] = asyncio.create_task(runner.run(), name=f"run {runner.name}")
            self._tasks[runner].add_done_callback(self._on_runner_ended)
        timeout_s = self._plan.start_timeout.total_seconds()
        for runner in runners:
            try:
                await runner.ready(timeout_s)
            except StackError as error:
                why = explanation(runner.name, self._logs.tail(runner.name))
                lines = self._failure_messages(runner)
                raise StackError("\n".join([str(error), *([why] if why else []), *lines])) from error

    async def _prepare_stores(self) -> None:
        child = self._prepare = Child(self._plan.prepare, lambda line: self._logs.line("prepare", line))
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                await child.ended.wait()
        except TimeoutError:
            raise StackError(f"the migration did not end in {PREPARE_TIMEOUT_S:.0f} s") from None
        finally:
            if not child.ended.is_set():
                await child.stop(self._urgent)
            child.release()
            self._prepare = None
        if not child.succeeded:
            lines = self._last_lines("prepare")
            raise StackError(f"the stores could not be prepared ({child.how_it_ended()})\n{lines}")

    async def _shut_down(self) -> None:
        if self._phase is not Phase.FAILED:
            self._phase = Phase.STOPPING
        self._publish()
        services = {spec.name for spec in self._plan.services}
        for group in (services, {spec.name for spec in self._plan.servers}):
            await self._stop([runner for runner in self._runners if runner.name in group])
        await self._reap_orphans()
        for spec in self._plan.services:
            if spec.listen_socket:
                spec.listen_socket.close()
        if self._phase is Phase.STOPPING:
            self._phase = Phase.STOPPED
        self._publish()
        self._log("the stack is down")

    async def _stop(self, runners: list[ServiceRunner]) -> None:
        for runner in runners:
            runner.stop()
            if self._urgent.is_set():
                runner.kill()
        if runners:
            await asyncio.wait([self._tasks[runner] for runner in runners])

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stop_requested.is_set():
            self._log("second stop signal: killing all processes")
            self._urgent.set()
            for runner in self._runners:
                runner.kill()
            return
        self._log(f"stopping ({number.name}); a second signal kills")
        self._stop_requested.set()

    def _on_child_ended(self) -> None:
        """Handle SIGCHLD: a child has ended, or was only stopped or continued."""
        ended = {runner.name for runner in self._runners if runner.reap()}
        if self._prepare is not None:
            self._prepare.reap()
        running = {name: pid for name, pid in self._started().items() if name not in ended}
        if (delay_s := self._orphans.reap(running, ended)) is not None:
            asyncio.get_running_loop().call_later(delay_s, self._orphans.kill_due)

    def _started(self) -> dict[str, int]:
        started = {runner.name: runner.pid for runner in self._runners if runner.pid is not None}
        return started if self._prepare is None else {**started, "prepare": self._prepare.pid}

    async def _reap_orphans(self) -> None:
        for _ in range(LAST_PASSES):  # each pass may show children of the killed processes
            if not self._orphans.kill_all(self._started().values()):
                return
            await asyncio.sleep(0.01)

    def _on_runner_ended(self, task: asyncio.Task[None]) -> None:
        """Stop the stack with an error if a runner fails, because its service would run unsupervised."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("".join(traceback.format_exception(error)).rstrip())
            self._fail(f"the supervisor failed ({task.get_name()}): {type(error).__name__}: {error}")
            self._stop_requested.set()

    def _fail(self, why: str) -> None:
        self._error = why
        self._phase = Phase.FAILED
        self._log(why)

    def _failure_messages(self, late: ServiceRunner) -> list[str]:
        """Return the last lines of ``late``, and of services that ended meanwhile, because it may wait for them."""
        died = [runner for runner in self._runners if runner.state.last_end and runner is not late]
        return [self._last_lines(late.name)] + [
            f"{runner.name} has ended {runner.state.restarts} times meanwhile; {self._last_lines(runner.name)}"
            for runner in died
        ]

    def _last_lines(self, name: str) -> str:
        once = [line for line, _ in groupby(self._logs.tail(name))]  # five starts may have printed the same line
        lines = "\n".join(f"    {line}" for line in once[-15:])
        return f"last lines of {self._logs.path(name)}:\n{lines}" if lines else f"it printed nothing ({name})"

    def _log(self, text: str) -> None:
        for line in text.splitlines():
            self._logs.line("treadle", line)

    def _publish(self) -> None:
        if self._identity is None:
            return
        running = {runner.name: runner.state for runner in self._runners}
        waiting = [
            ServiceState(spec.name, None, spec.url, State.STARTING if self._phase is Phase.STARTING else State.STOPPED)
            for spec in (*self._plan.servers, *self._plan.services)
        ]
        external = [ServiceState(other.name, None, other.url, State.EXTERNAL) for other in self._plan.externals]
        services = (*external, *(running.get(service.name, service) for service in waiting))
        self._publisher.publish(
            StackState(self._identity.pid, self._identity.started, self._phase, services, self._error)
        )


async def supervise(plan: StackPlan, logs: ServiceLogs, *, prepare_only: bool = False) -> int:
    """Run the stack in this process until a stop signal. Return the exit status. Call from the main thread.

    `prepare_only`: only until it is up.
    """
    return await StackSupervisor(plan, logs, prepare_only=prepare_only).run()
