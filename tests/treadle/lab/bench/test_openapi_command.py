"""``treadle openapi`` prints the document that the proxy serves."""

import json
import subprocess
import sys
from pathlib import Path

from treadle.cli.openapi import proxy_document
from treadle.testing.servers import clean_environment

TREADLE = Path(sys.executable).with_name("treadle")


def openapi(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(TREADLE), "openapi", *arguments]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)


def test_the_document_is_printed_without_a_stack_and_holds_hot_and_documented_routes() -> None:
    done = openapi()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == proxy_document()
    assert document["openapi"].startswith("3.1")
    assert {"/v1/actions", "/v1/rewards/bulk", "/v1/tasks/{task}", "/run_code"} <= document["paths"].keys()


def test_the_document_goes_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    assert openapi("--out", str(file)).returncode == 0
    assert json.loads(file.read_text())["info"]["title"]


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = openapi("--out", str(tmp_path / "nowhere" / "openapi.json"))
    assert done.returncode == 1
    assert "cannot write" in done.stderr
