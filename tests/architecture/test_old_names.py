"""Names that were replaced by the terms of the glossary do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REPLACED = {
    "_bury": "_dead_letter",
    "_homes": "_restore_placements",
    "_keep_house": "_maintain",
    "_Leftovers": "_CleanupCheck",
    "_mourn": "_report_end",
    "_say": "_log",
    "_take_back": "_undo",
    "_tell": "_process",
    "_tell_changes": "_report_changes",
    "_words_of_the_troubled": "_failure_messages",
    "action_states": "ActionRegistry.actions",
    "Aged": "HasAge",
    "Ahead": "Prefetch",
    "Alone": "DueAnswer",
    "as_it_should_be": "succeeded",
    "BatchBook": "BatchService or BatchRegistry",
    "BatchesSeen": "OpenBatchesSnapshot",
    "BatchSeen": "UnansweredRequests",
    "Bed": "NodeParts",
    "Begun": "StartedCell",
    "Book": "Service or Registry",
    "bury": "dead_letter",
    "bury_orphans": "reap_orphans",
    "CancelAsked": "CancelRequested",
    "Carrier": "AgentVolume",
    "CellHold": "CellHandle",
    "Clockwork": "VirtualTimeMesh",
    "close_doors": "install_guards",
    "CloseAsked": "CloseRequested",
    "Crowd": "DispatcherLoad",
    "decide_again": "repeated",
    "Desk": "a driver named by what it drives",
    "default_units": "KindSpec.units",
    "Direct": "DirectHandle",
    "disown": "orphan",
    "DockerEnvironment": "AgentEnvironment",
    "Door": "ListenSocket",
    "Doorstep": "ProxyUnderTest",
    "drop_node": "remove_node",
    "ElasticUnits": "ElasticRules",
    "engine_comes": "await_engine",
    "engine_door": "engine_proxy",
    "EngineDoorSettings": "EngineProxySettings",
    "environment_made": "environment_created",
    "environment_stands": "environment_exists",
    "EnvironmentMade": "EnvironmentCreated",
    "Errand": "FetchRequest",
    "ExecParcel": "ExecProgram",
    "FakeDoor": "FakeProxy",
    "falls_at": "decreases_at_s",
    "Filling": "SchedulingRound",
    "FirstCame": "FirstRequestArrived",
    "Floor": "ClusterState",
    "Forgetful": "NoImageLedger",
    "forgive_depth": "extend_recursion_limit",
    "Fresh": "NewGrant",
    "give_up_rights": "drop_privileges",
    "Glance": "OpenBatchView",
    "GroupWatch": "GroupSampler",
    "HeldEnvironment": "AgentEnvironment",
    "Hold": "EnvironmentHandle",
    "Holding": "ResourceUsage",
    "Housing": "EnvironmentPlacements",
    "housing": "environment_placements",
    "ImageWanted": "ImageRequested",
    "Inheritance": "ZygoteContext",
    "inquest": "cause_of_end",
    "InventoryAsked": "InventoryRequested",
    "is_carried_volume": "is_agent_volume",
    "keep_house": "delete_old_rows",
    "keep_time": "wake_planner",
    "Keeper": "ServiceRunner",
    "keeper": "service_runner",
    "Keeping": "ImageBudget",
    "Known": "OpenBatchState",
    "KnownBatch": "OpenBatchState",
    "Lack": "StuckWork",
    "LED": "LEADER_STREAMS",
    "Legacy": "StoreOfFormerLeader",
    "Lent": "SwerexTrajectory",
    "let_die": "release",
    "let_go": "release",
    "Life": "ActionState",
    "Line": "NodeQueue or GradingLine",
    "LineReader": "ResultDecoder",
    "lines_up": "prefetches",
    "Lived": "LiveRun",
    "LocalEnvironment": "AgentEnvironment",
    "LogBook": "ServiceLogs",
    "look_aside": "sample_in_thread",
    "Looked": "BatchesObserved",
    "LOOKS_EVERY_S": "SNAPSHOT_INTERVAL_S",
    "Maker": "ContainerCreator",
    "MAKING": "CREATION",
    "mourn": "report the end",
    "mourners": "end_listeners",
    "move_in": "begin_environment",
    "move_out": "remove_environment",
    "node_said_hello": "node_joined",
    "NEEDS_NO_CORE": "KindSpec.requirement",
    "needs_core": "KindSpec.requirement",
    "NodeBook": "NodeRegistry",
    "Offspring": "ChildProcesses",
    "past_engine": "direct",
    "Patience": "RetryPolicy",
    "PatientHttp": "BoundedHttp",
    "patiently": "with_retries",
    "Planned": "PlannerPolicy",
    "PlayedNode": "SimulatedNode",
    "PodWorld": "SimulatedPods",
    "poured": "fluid_starts_s",
    "PythonParcel": "PythonProgram",
    "read_seen": "read_snapshot",
    "read_standings": "read_statuses",
    "rehearsal": "simulation_kernel",
    "rehearse": "run_to_end",
    "Relaxed": "RelaxedPlan",
    "Resident": "EnvironmentAgent",
    "RESIDENT_PIDS": "AGENT_PIDS",
    "Rush": "StartBurst",
    "sat": "stale_prefetched",
    "Scene": "OneNodeMesh",
    "set_aside": "await_node",
    "Shelf": "ImageStore",
    "Sight": "ObservedBatch",
    "Stand": "ManagedEnvironment",
    "Standing": "BatchSnapshot, TrajectoryStatus",
    "stands_by": "standby",
    "started_ahead": "start_prefetched",
    "Starts": "StartPredictor",
    "Stays": "EnvironmentHeld",
    "Steady": "StabilizedTarget",
    "Steps": "ActionRegistry, AttemptHandler, EnvironmentHandler, NodeHandler",
    "Stillness": "Suspension",
    "StoreLedger": "StoredImageLedger",
    "Stray": "Orphan",
    "stray": "orphan",
    "Stumbling": "FailingRemovals",
    "Succession": "OwnCells",
    "Surroundings": "ActionContext",
    "take_down": "stop_stack",
    "take_stock": "reconcile",
    "TaskBook": "TaskRegistry",
    "Tell": "OnDone",
    "tell_backlog": "publish_backlog",
    "tell_started": "report_started",
    "telling_groups": "informative_groups",
    "ThroughEngine": "EngineHandle",
    "told_verdict": "reported_verdict",
    "TrajectoryBook": "TrajectoryService",
    "TREADLE_UNIT": "TREADLE_SERVICE",
    "TreeWatch": "TreeSampler",
    "understood": "decode_body",
    "VersionOne": "CgroupV1",
    "VersionTwo": "CgroupV2",
    "Ways": "PlannerConfig",
    "widening": "elastic grants",
    "Wish": "PoolDemand",
    "Woken": "TimerFired",
    "words_of_the_troubled": "_failure_messages",
    "World": "SimulatedCluster or SimulatedMesh",
    "WrongWorld": "SimulationError",
}
"""Old name -> the name that stands for it now."""


def python_files() -> list[Path]:
    return sorted(
        path
        for folder in ("services", "shared", "treadle", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    )


def names(text: str) -> set[str]:
    """Names in code and in strings that hold code."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING and "import " in token.string:
            found |= set(re.findall(r"\w+", token.string.replace("\\n", " ")))
    return found


def test_no_file_uses_a_replaced_name() -> None:
    used = {
        f"{path.relative_to(ROOT)}: {old} (use {REPLACED[old]})"
        for path in python_files()
        for old in names(path.read_text("utf-8")) & REPLACED.keys()
    }
    assert not used, "\n".join(["", *sorted(used)])


@pytest.mark.parametrize("text", ["class Floor: pass\n", "x = housing.move_in()\n", 'S = "from a import LogBook\\n"\n'])
def test_a_replaced_name_is_found(text: str) -> None:
    assert names(text) & REPLACED.keys()
