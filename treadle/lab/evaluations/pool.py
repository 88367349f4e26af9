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
"""Takes the weight of a job that is over, and its name."""


class Job(Protocol[Result_co]):
    """Something to work out. It goes to another process, so it is pickled."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float:
        """How long it takes, in any unit common to all jobs."""
        ...

    def __call__(self) -> Result_co: ...


def run_jobs(jobs: Sequence[Job[Result]], processes: int, on_done: OnDone) -> list[Result]:
    """The results, in the order of the jobs. With one process, all happens in this one.

    No worker stays behind when a job fails or the caller is interrupted, nor when this process is killed.

    Raises:
        BrokenProcessPool: a worker was killed.
        Exception: what a job raised.
    """
    order = sorted(range(len(jobs)), key=lambda number: -jobs[number].weight)
    results: dict[int, Result] = {}
    if processes == 1:
        for number in order:
            results[number] = jobs[number]()
            on_done(jobs[number].weight, jobs[number].name)
    else:
        with _workers(min(processes, max(1, len(jobs)))) as executor:
            with _unheard(signal.SIGINT):  # workers begin here, and inherit it: the parent alone answers Ctrl-C
                numbers = {executor.submit(jobs[number]): number for number in order}
            for future in as_completed(numbers):
                number = numbers[future]
                results[number] = future.result()
                on_done(jobs[number].weight, jobs[number].name)
    return [results[number] for number in range(len(jobs))]


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that ends with its block: when all is done, or at once when something went wrong."""
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hold their locks for ever
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_end_with_parent) as executor:
        try:
            yield executor
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _unheard(one: signal.Signals) -> Iterator[None]:
    """Hold a signal back until the block is over; processes that begin in it never hear it.

    The mask is what they inherit. It does not do alone: other threads of this process (a library's) have no such mask,
    and what one of them takes would still be raised here, halfway through the beginning of a process.
    """
    if current_thread() is not main_thread():
        yield
        return
    heard: list[int] = []
    handler = signal.signal(one, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {one})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(one, handler)
        if heard:
            signal.raise_signal(one)


def _end_with_parent() -> None:
    """In a worker: nobody works for a parent that is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_leave_with, args=(parent.sentinel,), name="parent", daemon=True).start()


def _leave_with(parent: int) -> None:
    wait([parent])
    os._exit(1)


@contextmanager
def progress_bar(console: Console, title: str, total: float) -> Iterator[OnDone]:
    """Shows what share of the weight is done, and what was done last."""
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
