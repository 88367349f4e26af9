"""The published `sandbox-fusion` client, unmodified, against our `/run_code`: the same fields, the same statuses."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from sandbox_fusion import (
    CommandRunStatus,
    RunCodeRequest,
    RunCodeResponse,
    RunStatus,
    SummaryMapping,
    run_code,
    run_code_async,
    run_concurrent,
    summary_run_code_result,
)

from tests.e2e.replicas import running_mesh
from treadle.testing.servers import running_valkey, temporary_home

LONG_S = 60.0
SHORT_S = 0.5


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1) as mesh,
    ):
        yield mesh.proxies[0].url


def ran(endpoint: str, code: str, *, language: str = "python", **fields: Any) -> RunCodeResponse:
    limits = {"compile_timeout": LONG_S, "run_timeout": LONG_S, **fields}
    request = RunCodeRequest(code=code, language=language, **limits)
    return run_code(request, endpoint=endpoint, max_attempts=1, client_timeout=4 * LONG_S)


def needs(endpoint: str, language: str) -> None:
    labels = requests.get(f"{endpoint}/v1/nodes", timeout=30).json()["nodes"][0]["labels"]
    if f"language.{language}" not in labels:
        pytest.skip(f"this machine has no toolchain for {language}")


def test_a_program_that_ends_well_is_a_success(endpoint: str) -> None:
    reply = ran(endpoint, "print(input()[::-1])", stdin="stressed")
    assert reply.status is RunStatus.Success
    assert (reply.message, reply.compile_result, reply.files) == ("", None, {})
    assert reply.executor_pod_name is not None
    assert reply.run_result is not None
    assert reply.run_result.status is CommandRunStatus.Finished
    assert (reply.run_result.return_code, reply.run_result.stdout, reply.run_result.stderr) == (0, "desserts\n", "")
    assert reply.run_result.execution_time is not None


def test_a_program_with_another_exit_code_fails_with_code_and_stderr(endpoint: str) -> None:
    reply = ran(endpoint, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert reply.status is RunStatus.Failed
    assert reply.run_result is not None
    assert reply.run_result.status is CommandRunStatus.Finished
    assert (reply.run_result.return_code, reply.run_result.stdout, reply.run_result.stderr) == (3, "out\n", "err\n")


def test_an_exception_is_a_failure_with_its_traceback(endpoint: str) -> None:
    reply = ran(endpoint, "1 / 0")
    assert reply.status is RunStatus.Failed
    assert reply.run_result is not None
    assert reply.run_result.return_code == 1
    assert "ZeroDivisionError" in (reply.run_result.stderr or "")


def test_a_time_limit_is_reported_with_the_output_before_it(endpoint: str) -> None:
    reply = ran(endpoint, "print('begun', flush=True)\nwhile True: pass", run_timeout=SHORT_S)
    assert reply.status is RunStatus.Failed
    assert reply.run_result is not None
    assert reply.run_result.status is CommandRunStatus.TimeLimitExceeded
    assert (reply.run_result.return_code, reply.run_result.stdout) == (None, "begun\n")
    assert reply.run_result.execution_time is not None
    assert reply.run_result.execution_time >= SHORT_S


def test_a_megabyte_of_output_neither_hangs_nor_is_lost(endpoint: str) -> None:
    reply = ran(endpoint, "import sys\nfor _ in range(1000): sys.stdout.write('x' * 1000)")
    assert reply.status is RunStatus.Success
    assert reply.run_result is not None
    assert reply.run_result.stdout == "x" * 1_000_000


def test_endless_output_does_not_hang(endpoint: str) -> None:
    reply = ran(endpoint, "while True: print('x' * 100_000)", run_timeout=2)
    assert reply.status is RunStatus.Failed
    assert reply.run_result is not None
    assert (reply.run_result.stdout or "").startswith("x" * 100_000)


def test_both_results_of_a_compiled_language(endpoint: str) -> None:
    needs(endpoint, "cpp")
    source = '#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * n << "\\n"; }'
    reply = ran(endpoint, source, language="cpp", stdin="12")
    assert reply.status is RunStatus.Success
    assert reply.compile_result is not None
    assert reply.run_result is not None
    assert (reply.compile_result.status, reply.compile_result.return_code) == (CommandRunStatus.Finished, 0)
    assert reply.run_result.stdout == "144\n"


def test_a_compile_error_has_no_run(endpoint: str) -> None:
    needs(endpoint, "cpp")
    reply = ran(endpoint, "int main() { return undeclared; }", language="cpp")
    assert reply.status is RunStatus.Failed
    assert reply.run_result is None
    assert reply.compile_result is not None
    assert reply.compile_result.status is CommandRunStatus.Finished
    assert reply.compile_result.return_code not in (0, None)
    assert "undeclared" in (reply.compile_result.stderr or "")


def test_files_go_in_and_come_out(endpoint: str) -> None:
    content = base64.b64encode(bytes(range(256))).decode()
    code = "data = open('in/data.bin', 'rb').read()\nopen('out.bin', 'wb').write(data[::-1])"
    files = {"in/data.bin": content, "absent": None}
    reply = ran(endpoint, code, files=files, fetch_files=["out.bin", "never-written"])
    assert reply.status is RunStatus.Success
    assert {name: base64.b64decode(data) for name, data in reply.files.items()} == {"out.bin": bytes(range(256))[::-1]}


def test_an_unavailable_language_is_an_infrastructure_error_that_names_the_available_ones(endpoint: str) -> None:
    with pytest.raises(Exception, match=r"Sandbox responded with error: .*'racket'.*python"):
        ran(endpoint, "(display 1)", language="racket")


async def test_the_asynchronous_client(endpoint: str) -> None:
    request = RunCodeRequest(code="print(6 * 7)", language="python", run_timeout=LONG_S)
    reply = await run_code_async(request, endpoint=endpoint, max_attempts=1, client_timeout=4 * LONG_S)
    assert reply.status is RunStatus.Success
    assert reply.run_result is not None
    assert reply.run_result.stdout == "42\n"


def test_many_at_once(endpoint: str) -> None:
    replies = run_concurrent(ran, args=[[endpoint, f"print({n} ** 2)"] for n in range(40)], concurrency=20)
    assert [reply.run_result.stdout for reply in replies] == [f"{n**2}\n" for n in range(40)]


def test_the_client_s_own_summaries(endpoint: str) -> None:
    mapping = SummaryMapping(Success="right", Failed="failed", RunTimeout="slow", RunFailed="wrong")
    ends = [
        ran(endpoint, "pass"),
        ran(endpoint, "raise SystemExit(1)"),
        ran(endpoint, "while 1: pass", run_timeout=SHORT_S),
    ]
    assert [summary_run_code_result(end, mapping) for end in ends] == ["right", "wrong", "slow"]


# ---- bodies that this client cannot send and other clients do ----------------------------------------------------


def posted(endpoint: str, body: Any, path: str = "/run_code") -> Any:
    reply = requests.post(endpoint + path, json=body, timeout=4 * LONG_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("language", ["python", "python3", "py", "Python"])
def test_the_names_a_fence_gives_to_python(endpoint: str, language: str) -> None:
    assert posted(endpoint, {"code": "print(1)", "language": language})["status"] == "Success"


@pytest.mark.parametrize("language", ["nodejs", "javascript", "js"])
def test_the_names_a_fence_gives_to_javascript(endpoint: str, language: str) -> None:
    needs(endpoint, "javascript")
    reply = posted(endpoint, {"code": "console.log(1)", "language": language, "run_timeout": LONG_S})
    assert reply["run_result"]["stdout"] == "1\n"


def test_code_alone_is_python_and_unknown_fields_are_ignored(endpoint: str) -> None:
    reply = posted(endpoint, {"code": "print(1)", "stdin": None, "eagleeye": True, "expected_stdout": "1"})
    assert reply["run_result"]["stdout"] == "1\n"


def test_time_and_memory_are_added_to_the_original_fields(endpoint: str) -> None:
    reply = posted(endpoint, {"code": "x = bytearray(50_000_000)", "memory_limit_MB": 512})
    assert {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"} <= reply.keys()
    assert reply["queue_time"] >= 0
    assert reply["cpu_time"] > 0
    assert reply["peak_memory"] >= 50_000_000


def test_a_memory_limit_is_a_failure_of_the_program(endpoint: str) -> None:
    reply = posted(endpoint, {"code": "x = bytearray(900_000_000)", "memory_limit_MB": 128, "run_timeout": LONG_S})
    assert reply["status"] == "Failed"
    assert reply["run_result"]["return_code"] not in (0, None)


@pytest.mark.parametrize("path", ["/run_code/", "/t/tenant-a/task-1/run_code", "/t/tenant-a/task-1/run_code/"])
def test_the_paths_that_clients_make_of_their_setting(endpoint: str, path: str) -> None:
    assert posted(endpoint, {"code": "pass"}, path)["status"] == "Success"


def test_a_file_that_climbs_out_is_an_error_of_the_caller_not_a_failed_program(endpoint: str) -> None:
    reply = posted(endpoint, {"code": "pass", "files": {"../x": ""}})
    assert (reply["status"], reply["run_result"]) == ("SandboxError", None)
    assert "working directory" in reply["message"]


def test_a_body_without_code_is_an_error_that_names_code(endpoint: str) -> None:
    reply = requests.post(f"{endpoint}/run_code", json={"language": "python"}, timeout=30)
    assert reply.status_code == 422
    assert "code" in reply.json()["detail"]


def test_surrogates_in_code_and_input_do_no_harm(endpoint: str) -> None:
    body = '{"code": "print(len(input()))", "stdin": "\\ud83d\\ude00", "language": "python"}'
    headers = {"Content-Type": "application/json"}
    reply = requests.post(f"{endpoint}/run_code", data=body, headers=headers, timeout=60)
    assert reply.json()["run_result"]["stdout"] == "1\n"


def test_ping(endpoint: str) -> None:
    assert requests.get(f"{endpoint}/v1/ping", timeout=30).json() == "pong"
