"""Jobs on worker processes, the heaviest first, with a progress bar on standard error."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from threading import Thread, current_thread, main_thread
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Result_co = TypeVar("Result_co", covariant=True)
Result = TypeVar("Result")
OnDone = Callable[[float, str], None]
"""Receives the weight of a finished job, and its name."""


class Job(Protocol[Result_co]):
    """A job. It is pickled for another process."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float:
        """Its duration, in any unit common to all jobs."""
        ...

    def __call__(self) -> Result_co: ...


def run_jobs(jobs: Sequence[Job[Result]], processes: int, on_done: OnDone) -> list[Result]:
    """Run jobs; return the results in the order of the jobs. With one process, no worker is started.

    All workers end if a job fails, if the caller is interrupted, or if this process is killed.

    Raises:
        BrokenProcessPool: a worker was killed.
        Exception: the error of a job.
    """
    order = sorted(range(len(jobs)), key=lambda number: -jobs[number].weight)
    results: dict[int, Result] = {}
    if processes == 1:
        for number in order:
            results[number] = jobs[number]()
            on_done(jobs[number].weight, jobs[number].name)
    else:
        with _workers(min(processes, max(1, len(jobs)))) as executor:
            with _delayed(signal.SIGINT):  # workers start here and inherit it: only the parent handles Ctrl-C
                numbers = {executor.submit(jobs[number]): number for number in order}
            for future in as_completed(numbers):
                number = numbers[future]
                results[number] = future.result()
                on_done(jobs[number].weight, jobs[number].name)
    return [results[number] for number in range(len(jobs))]


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool that ends with its block: after all jobs, or at once after an error."""
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hold their locks forever
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_end_with_parent) as executor:
        try:
            yield executor
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _delayed(one: signal.Signals) -> Iterator[None]:
    """Delay a signal until the end of the block; processes that start in it ignore it.

    They inherit the mask. The mask alone is not enough: other threads of this process (a library's) have none, and a
    signal received by one of them would still be raised here, during the start of a process.
    """
    if current_thread() is not main_thread():
        yield
        return
    received: list[int] = []
    handler = signal.signal(one, lambda number, _: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {one})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(one, handler)
        if received:
            signal.raise_signal(one)


def _end_with_parent() -> None:
    """Initializer of a worker: end it when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_exit_after, args=(parent.sentinel,), name="parent", daemon=True).start()


def _exit_after(parent: int) -> None:
    wait([parent])
    os._exit(1)


@contextmanager
def progress_bar(console: Console, title: str, total: float) -> Iterator[OnDone]:
    """Show the finished share of the weight, and the last job."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}[/]"),
        console=console,
    )
    with bar:
        task = bar.add_task(title, total=total, last="")
        yield lambda weight, name: bar.update(task, advance=weight, last=name)
