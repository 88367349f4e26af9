"""Programs in the real sandbox, graded by the real graders: cases in which a fake sandbox differs."""

from __future__ import annotations

import asyncio
import os

import pytest

from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.registry import build_graders
from services.cpu_manager.kinds import CodeAsserts, CodeRun, CodeStdio, StdioTest
from services.cpu_manager.sandbox.languages import languages
from services.cpu_manager.sandbox.local import LocalSandbox
from shared.kinds.spec import Params

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = {
    "py": "print(input())",
    "sh": "read line; echo $line",
    "c": '#include <stdio.h>\nint main() { char s[9]; scanf("%8s", s); puts(s); }',
    "c++": "#include <iostream>\nint main() { std::string s; std::cin >> s; std::cout << s << std::endl; }",
    "js": "console.log(require('fs').readFileSync(0, 'utf8').trim())",
    "golang": 'package main\nimport "fmt"\nfunc main() { var s string; fmt.Scan(&s); fmt.Println(s) }',
    "rs": 'fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); print!("{}", s) }',
    "java": "public class Main { public static void main(String[] a) {"
    " System.out.println(new java.util.Scanner(System.in).next()); } }",
}


async def graded(walls: LocalSandbox, kind: str, params: Params, timeout_s: float = 120.0) -> Verdict:
    cores = frozenset(os.sched_getaffinity(0))
    context = GradingContext(sandbox=walls, cores=cores, timeout_s=timeout_s, tenant="walls")
    return await build_graders(languages())[kind].grade(params, context)


@pytest.mark.parametrize("language", HELLO)
async def test_every_language_of_the_node_answers_under_its_alias(walls: LocalSandbox, language: str) -> None:
    params = CodeRun(code=HELLO[language], language=language, stdin="hello\n", compile_timeout_s=60, run_timeout_s=20)
    verdict = await graded(walls, "code.run", params)
    if verdict.status == "refused":
        pytest.skip(verdict.reason)
    assert verdict.output["status"] == "Success", verdict
    assert verdict.output["run_result"]["stdout"] == "hello\n"
    assert verdict.output["cpu_time"] > 0
    assert verdict.output["peak_memory"] > 0


async def test_a_compile_error_is_the_programs_own(walls: LocalSandbox) -> None:
    verdict = await graded(walls, "code.run", CodeRun(code="int main( {", language="c", compile_timeout_s=60))
    if verdict.status == "refused":
        pytest.skip(verdict.reason)
    assert verdict.output["error_class"] == "CompileError"
    assert "error" in verdict.output["compile_result"]["stderr"]
    assert verdict.output["run_result"] is None


async def test_files_go_in_and_come_out(walls: LocalSandbox) -> None:
    code = "import pathlib\npathlib.Path('out').mkdir()\nd = open('in/a').read()\nopen('out/b', 'w').write(d * 2)"
    params = CodeRun(code=code, files={"in/a": "YWI="}, fetch_files=["out/b", "none"])
    verdict = await graded(walls, "code.run", params)
    assert verdict.output["files"] == {"out/b": "YWJhYg=="}, verdict


async def test_endless_output_neither_hangs_nor_is_kept(walls: LocalSandbox) -> None:
    params = CodeRun(code="print('x' * 20_000_000, end='')", run_timeout_s=30)
    verdict = await graded(walls, "code.run", params)
    assert verdict.output["run_result"]["return_code"] == 0
    assert set(verdict.output["run_result"]["stdout"]) == {"x"}
    assert len(verdict.output["run_result"]["stdout"]) < 20_000_000


async def test_a_program_beyond_its_memory_is_reported_as_such(walls: LocalSandbox) -> None:
    params = CodeAsserts(
        code="x = [bytearray(1 << 20) for _ in range(1 << 12)]", tests="pass", memory_mb=128, timeout_s=30
    )
    verdict = await graded(walls, "code.asserts", params)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0), verdict
    assert verdict.output.get("exception", "MemoryLimitExceeded") in ("MemoryLimitExceeded", "MemoryError")


async def test_tests_of_stdin_and_stdout_on_all_cores(walls: LocalSandbox) -> None:
    tests = [StdioTest(stdin=f"{n}\n", stdout=f"{n * n}\n") for n in range(6)]
    wrong_at_four = "n = int(input())\nprint(n * n if n != 4 else 0)"
    verdict = await graded(walls, "code.stdio", CodeStdio(code=wrong_at_four, tests=tests, score="fraction"))
    assert [test["verdict"] for test in verdict.output["tests"]] == ["passed"] * 4 + ["wrong-output", "passed"]
    assert verdict.score == pytest.approx(5 / 6)


async def test_a_test_leaves_nothing_to_the_next(walls: LocalSandbox) -> None:
    code = "import os\nprint(*map(os.path.exists, ('left', '/tmp/left')))\nopen('left', 'w')\nopen('/tmp/left', 'w')"
    tests = [StdioTest(stdout="False False\n")] * 3
    verdict = await graded(walls, "code.stdio", CodeStdio(code=code, tests=tests))
    assert verdict.passed, verdict


async def test_a_cancelled_action_is_over_at_once(walls: LocalSandbox) -> None:
    endless = CodeAsserts(code="while True: pass", tests="pass", timeout_s=100)
    running = asyncio.create_task(graded(walls, "code.asserts", endless))
    done, _ = await asyncio.wait([running], timeout=0.5)
    assert not done
    running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.cancelled()
