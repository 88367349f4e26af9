"""The tables of ``treadle services``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console
from typer.testing import CliRunner

from tests.e2e.processes import running_service
from treadle.cli.groups import GroupOptions
from treadle.cli.main import app
from treadle.cli.services import _overview, _table
from treadle.cli.tables import printable
from treadle.client.answers import EngineView, EntryView, GpuView, ModelServiceList, ModelServiceView, ServiceProblem


def gpu(number: int, ownership: str = "", why: str = "") -> GpuView:
    return GpuView(node="gpu-1", number=number, name="H100", memory_gb=80.0, ownership=ownership, why=why)


def engine(state: str, why: str = "", **fields: Any) -> EngineView:
    rest: dict[str, Any] = {"level": "", "running": 12, "waiting": 345, "device_gb": 70.0, "host_gb": 0.0, **fields}
    unset: dict[str, Any] = {"probe_at": None, "address": "", "lease_until": None, "measured_s": {"load": 120.0}}
    rest.setdefault("node", "gpu-node-17.cluster.internal")
    return EngineView(gpus=[4, 7], state=state, since=time.time(), why=why, **rest, **unset)


def service(name: str, *engines: EngineView, why: str = "") -> ModelServiceView:
    texts: dict[str, Any] = dict.fromkeys(("source", "refers_to", "backend", "api", "model"), "")
    lists: dict[str, Any] = {field: [] for field in ("degrees", "nodes", "pending", "problems")}
    rest: dict[str, Any] = {"entry": None, "concurrency": 1, "awake_gb": 0.0, "state": "cold"}
    return ModelServiceView(name=name, why=why, engines=list(engines), **texts, **lists, **rest)


WHY = "the engine ended with status 1 before it was healthy: CUDA out of memory; give it more memory_gb, or fewer GPUs"
VIEWS = [
    service("reward-model-large", engine("quarantined", WHY), engine("evicted", level="asleep1")),
    service("judge", why="no node \x1b[31mhas [red] 8 GPUs"),
]


def lines(console: Console, *views: ModelServiceView) -> list[str]:
    with console.capture() as captured:
        console.print(_table(views), crop=False)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_value_is_cut_and_nothing_is_wider_than_the_terminal(width: int) -> None:
    found = lines(Console(width=width), *VIEWS)
    assert max(map(len, found)) <= width
    text = " ".join(" ".join(line.split()) for line in found)
    for value in ("quarantined", "evicted (asleep1)", "gpu-node-17.cluster.internal", "70.0", "120.0 s", "345", WHY):
        assert value in text
    assert "no node \ufffd[31mhas [red] 8 GPUs" in text


def test_reasons_have_lines_of_their_own_on_80_columns() -> None:
    found = lines(Console(width=80), *VIEWS)
    assert [line.split()[0] for line in found[:2]] == ["SERVICE", "reward-model-large"]
    assert "quarantined" in found[1]
    assert found[2] == "  node gpu-node-17.cluster.internal"
    assert found[3].startswith("  the engine ended with status 1 before it was healthy: CUDA out of memory; give")
    assert "evicted (asleep1)" in found[5]


def test_no_name_and_state_is_cut_although_both_are_too_long() -> None:
    row = lines(Console(width=40), service("n" * 64, engine("quarantined")))[1]
    assert row.split() == ["n" * 64, "quarantined"]


@pytest.mark.parametrize("arguments", [["ls"], ["show", "judge"]])
def test_output_into_a_pipe_has_no_limit_of_width(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModelServiceList(services=VIEWS, gpus=[]) if arguments == ["ls"] else VIEWS[0]
    monkeypatch.setattr(GroupOptions, "call", lambda self, call: found)
    monkeypatch.setenv("COLUMNS", "40")
    done = CliRunner().invoke(app, ["services", *arguments])
    assert done.exit_code == 0, done.stderr
    assert f"  {WHY}" in done.stdout.splitlines()
    assert "gpu-node-17.cluster.internal  4-7   quarantined" in done.stdout


def test_a_service_that_is_unknown_is_not_removed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service("proxy", redis_url) as proxy:
        monkeypatch.setenv("TREADLE_URL", proxy.url)
        done = CliRunner().invoke(app, ["services", "rm", "judg"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "treadle services rm: no model service 'judg'; treadle services ls lists all\n"


def shown(*gpus: GpuView) -> list[str]:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(_overview(ModelServiceList(services=[], gpus=list(gpus))), crop=False)
    table = captured.get().partition("NODE")[2].partition("GPU ")[2].splitlines()[1:]
    return [" ".join(line.split()) for line in table]


def test_gpus_with_hooks_and_faulty_ones_are_shown() -> None:
    assert shown(gpu(0), gpu(1, why="NVML: GPU is lost")) == ["gpu-1 1 H100", "NVML: GPU is lost"]
    assert shown(gpu(0, "held"), gpu(1)) == ["gpu-1 0 held H100"]
    assert shown(gpu(0), gpu(1)) == []


def test_a_reason_with_the_output_of_an_engine_is_one_line() -> None:
    assert printable("its load failed:\nTraceback:\n\tfile \x1b[31mx") == "its load failed: Traceback: file \ufffd[31mx"


def shown_by(command: str, view: ModelServiceView, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    file = tmp_path / "service.json"
    file.write_text('{"entry": "judge-a"}')
    monkeypatch.setattr(GroupOptions, "call", lambda self, call: view)
    arguments = [view.name, str(file)] if command == "set" else [view.name]
    done = CliRunner().invoke(app, ["services", command, *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


ENTRY = EntryView(
    backend="process", api="openai", model="m\x9b31m\x1b]0;title\x07", degrees=[1], memory_gb={"awake": 16.0},
    memory_gb_by_degree={}, concurrency=1, priority=0, min_residency_s=0.0, start_s=600.0, load_s=60.0,
    health="/health", keep_connections=False, canary={"expect": "gr\u00fcn \U0001f9f5"}, env=[],
    command={}, url={}, first_gpu={},
)  # fmt: skip


@pytest.mark.parametrize("command", ["show", "set"])
def test_no_text_of_a_service_controls_the_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = "its load failed:\n\x1b[31m\x07 \x9b1m [red]x"
    view = structs.replace(
        service("judge", engine("quarantined", bad, node="gpu\x1b[1m")), entry=ENTRY, refers_to="a\x1b[1m", why=bad,
        problems=[ServiceProblem(node="gpu-2\x1b[1m", why=bad)], pending=["gpu-3\x1b[1m"],
    )  # fmt: skip
    output = shown_by(command, view, monkeypatch, tmp_path)
    assert [one for one in output if not one.isprintable() and one != "\n"] == []
    assert "gpu-2\ufffd[1m cannot use it: its load failed: \ufffd[31m\ufffd \ufffd1m [red]x\n" in output
    assert json.loads(output[output.index("{") : output.rindex("}") + 1])["model"] == ENTRY.model
    assert "gr\u00fcn \U0001f9f5" in output


@pytest.mark.parametrize("command", ["show", "set"])
def test_a_service_that_no_node_has_yet_says_so(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    why = "no node has it yet: none has applied its declaration"
    view = structs.replace(service("second", why=why), source="rest", refers_to="judge-a", pending=["gpu-1", "gpu-2"])
    assert shown_by(command, view, monkeypatch, tmp_path).splitlines()[1:] == [
        "second   none yet        cold                                     ",
        f"  {why}",
        "declared by rest, refers to judge-a",
        "its entry is shown when a node has applied its declaration",
        "not applied yet by gpu-1, gpu-2: each does at its next heartbeat",
    ]
