from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.graders.compile_cache import CompileCache, Compiled, compile_key
from services.cpu_manager.sandbox.protocol import EndedBy, Exit, Limits

LIMITS = Limits(wall_s=10.0)


def compiled(
    artifact: bytes = b"binary", *, ended_by: EndedBy = "exit", exit_code: int = 0, limits: Limits = LIMITS
) -> Compiled:
    end = Exit(ended_by=ended_by, exit_code=exit_code if ended_by == "exit" else None)
    return Compiled(end=end, artifact={"program": artifact}, limits=limits)


class Compiler:
    """Counts its runs; each waits for `finish` and returns the given result."""

    def __init__(self, result: Compiled) -> None:
        self.result = result
        self.started = 0
        self.cancelled = 0
        self.finish = asyncio.Event()

    async def __call__(self) -> Compiled:
        self.started += 1
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.result


async def settled() -> None:
    """Run every task until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_concurrent_askers_share_one_compile() -> None:
    cache, compiler = CompileCache(), Compiler(compiled())
    askers = [asyncio.create_task(cache.get(b"k", LIMITS, compiler)) for _ in range(5)]
    await settled()
    compiler.finish.set()
    answers = await asyncio.gather(*askers)
    assert compiler.started == 1
    assert [fresh for _, fresh in answers] == [True, False, False, False, False]
    assert {answer.artifact["program"] for answer, _ in answers} == {b"binary"}
    cache.check()


async def test_a_cancelled_first_asker_hands_over_to_one_who_waits() -> None:
    cache, compiler = CompileCache(), Compiler(compiled())
    first, second, third = (asyncio.create_task(cache.get(b"k", LIMITS, compiler)) for _ in range(3))
    await settled()
    first.cancel()
    await settled()
    assert (compiler.started, compiler.cancelled) == (2, 1)
    compiler.finish.set()
    assert [fresh for _, fresh in await asyncio.gather(second, third)] == [True, False]
    assert first.cancelled()


async def test_a_cancelled_waiter_disturbs_no_other() -> None:
    cache, compiler = CompileCache(), Compiler(compiled())
    first, second = (asyncio.create_task(cache.get(b"k", LIMITS, compiler)) for _ in range(2))
    await settled()
    second.cancel()
    await settled()
    compiler.finish.set()
    answer, _ = await first
    assert answer.succeeded
    assert (compiler.started, compiler.cancelled) == (1, 0)


async def test_when_all_askers_are_gone_the_compile_is_dead_and_nothing_is_kept() -> None:
    cache, compiler = CompileCache(), Compiler(compiled())
    askers = [asyncio.create_task(cache.get(b"k", LIMITS, compiler)) for _ in range(2)]
    await settled()
    for asker in askers:
        asker.cancel()
    await settled()
    assert compiler.started == compiler.cancelled
    compiler.finish.set()
    _, fresh = await cache.get(b"k", LIMITS, compiler)
    assert fresh


@pytest.mark.parametrize(
    ("ended_by", "kept"), [("exit", True), ("signal", True), ("memory-limit", True), ("lost", False)]
)
async def test_failures_are_kept_unless_they_are_ours(ended_by: EndedBy, kept: bool) -> None:
    cache, compiler = CompileCache(), Compiler(compiled(ended_by=ended_by, exit_code=1))
    compiler.finish.set()
    await cache.get(b"k", LIMITS, compiler)
    await cache.get(b"k", LIMITS, compiler)
    assert compiler.started == (1 if kept else 2)


async def test_a_lost_compile_is_returned_to_waiting_calls() -> None:
    cache, compiler = CompileCache(), Compiler(compiled(ended_by="lost"))
    askers = [asyncio.create_task(cache.get(b"k", LIMITS, compiler)) for _ in range(3)]
    await settled()
    compiler.finish.set()
    answers = await asyncio.gather(*askers)
    assert {answer.end.ended_by for answer, _ in answers} == {"lost"}
    assert compiler.started == 1


async def test_a_caller_with_a_longer_limit_is_not_answered_with_a_timeout() -> None:
    cache = CompileCache()
    hasty = Compiler(compiled(ended_by="wall-limit", limits=Limits(wall_s=1.0)))
    hasty.finish.set()
    await cache.get(b"k", Limits(wall_s=1.0), hasty)
    patient = Compiler(compiled())
    patient.finish.set()
    answer, fresh = await cache.get(b"k", LIMITS, patient)
    assert (answer.succeeded, fresh) == (True, True)
    answer, fresh = await cache.get(b"k", Limits(wall_s=1.0), hasty)
    assert (answer.succeeded, fresh) == (True, False)
    cache.check()


async def test_a_compiler_that_raises_leaves_the_next_asker_to_try() -> None:
    cache = CompileCache()

    async def broken() -> Compiled:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await cache.get(b"k", LIMITS, broken)
    compiler = Compiler(compiled())
    compiler.finish.set()
    answer, _ = await cache.get(b"k", LIMITS, compiler)
    assert answer.succeeded


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_it_holds_its_bounds_whatever_is_asked(asked: list[tuple[int, int]]) -> None:
    async def ask_all() -> None:
        cache = CompileCache(max_entries=4, max_bytes=100)
        for key, size in asked:

            def made(size: int = size) -> Callable[[], Awaitable[Compiled]]:
                async def compile_now() -> Compiled:
                    return compiled(b"x" * size)

                return compile_now

            await cache.get(b"%d" % key, LIMITS, made())
            cache.check()

    asyncio.run(ask_all())


async def test_the_least_recently_used_goes_first() -> None:
    cache, compiler = CompileCache(max_entries=2), Compiler(compiled())
    compiler.finish.set()
    for key in (b"a", b"b", b"a", b"c"):
        await cache.get(key, LIMITS, compiler)
    assert compiler.started == 3
    _, fresh_a = await cache.get(b"a", LIMITS, compiler)
    _, fresh_b = await cache.get(b"b", LIMITS, compiler)
    assert (fresh_a, fresh_b) == (False, True)


async def test_an_artifact_larger_than_the_cache_is_answered_and_not_kept() -> None:
    cache, compiler = CompileCache(max_bytes=3), Compiler(compiled(b"large"))
    compiler.finish.set()
    answer, _ = await cache.get(b"k", LIMITS, compiler)
    assert answer.artifact == {"program": b"large"}
    cache.check()


def test_keys_differ_in_every_part() -> None:
    keys = {
        compile_key("ada", "cpp", "int x;", {}),
        compile_key("bob", "cpp", "int x;", {}),
        compile_key("ada", "c", "int x;", {}),
        compile_key("ada", "cpp", "int y;", {}),
        compile_key("ada", "cpp", "int x;", {"a": b""}),
        compile_key("ada", "cpp", "int x;", {"a": b"1", "b": b""}),
        compile_key("ada", "cpp", "int x;", {"a": b"", "b": b"1"}),
    }
    assert len(keys) == 7
    assert compile_key("ada", "c", "x", {"a": b"1", "b": b"2"}) == compile_key("ada", "c", "x", {"b": b"2", "a": b"1"})
