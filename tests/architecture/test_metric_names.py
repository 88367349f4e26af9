"""Names of exported metrics: those of a list written by hand, in the code and in the documents."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

ROOT = Path(__file__).parents[2]

METRICS = {
    "proxy": {
        "treadle_proxy_act_seconds",
        "treadle_proxy_answered_total",
        "treadle_proxy_archive_failures_total",
        "treadle_proxy_archived_answers_total",
        "treadle_proxy_body_bytes",
        "treadle_proxy_disk_free_bytes",
        "treadle_proxy_disk_total_bytes",
        "treadle_proxy_held_calls",
        "treadle_proxy_held_resubmissions_total",
        "treadle_proxy_leader_epoch",
        "treadle_proxy_leader_up",
        "treadle_proxy_nodes",
        "treadle_proxy_planner_up",
        "treadle_proxy_queue_seconds",
        "treadle_proxy_quota_held",
        "treadle_proxy_quota_upstream",
        "treadle_proxy_quota_waiting_actions",
        "treadle_proxy_upstream_answers_total",
        "treadle_proxy_queued_actions",
        "treadle_proxy_parked_actions",
        "treadle_proxy_parkings_total",
        "treadle_proxy_untraced_actions_total",
        "treadle_proxy_resumptions_total",
        "treadle_proxy_retrieve_calls_total",
        "treadle_proxy_run_code_calls_total",
        "treadle_proxy_service_restarts",
        "treadle_proxy_store_up",
        "treadle_proxy_stuck_actions",
        "treadle_proxy_submitted_total",
        "treadle_proxy_unanswered_actions",
        "treadle_proxy_usage_total",
        "treadle_proxy_valkey_bound_bytes",
        "treadle_proxy_valkey_used_bytes",
        "treadle_proxy_waiting_callers",
    },
    "scaling_planner": {
        "treadle_scaling_planner_batches_total",
        "treadle_scaling_planner_deciding_seconds",
        "treadle_scaling_planner_decisions_total",
        "treadle_scaling_planner_extra_delay_seconds",
        "treadle_scaling_planner_target_units",
    },
    "cpu_manager": {
        "treadle_cpu_manager_attempts_total",
        "treadle_cpu_manager_environment_creation_seconds",
        "treadle_cpu_manager_environments",
        "treadle_cpu_manager_environments_ended_total",
        "treadle_cpu_manager_execution_seconds",
        "treadle_cpu_manager_model_wait_seconds",
    },
    "quota_manager": {
        "treadle_quota_manager_answers_total",
        "treadle_quota_manager_attempts_total",
        "treadle_quota_manager_call_seconds",
        "treadle_quota_manager_calls",
    },
    "gpu_manager": {
        "treadle_gpu_manager_attempts_total",
        "treadle_gpu_manager_evictions_total",
        "treadle_gpu_manager_faulty_gpus",
        "treadle_gpu_manager_gpus",
        "treadle_gpu_manager_hook_seconds",
        "treadle_gpu_manager_liveness_checks_total",
        "treadle_gpu_manager_prewarms_total",
        "treadle_gpu_manager_running",
        "treadle_gpu_manager_step_seconds",
        "treadle_gpu_manager_wait_seconds",
    },
    "trajectory_router": {
        "treadle_trajectory_router_calls_total",
        "treadle_trajectory_router_first_byte_seconds",
        "treadle_trajectory_router_in_flight",
        "treadle_trajectory_router_leading",
        "treadle_trajectory_router_queue_seconds",
        "treadle_trajectory_router_record_commit_seconds",
        "treadle_trajectory_router_recorded_tokens_total",
        "treadle_trajectory_router_refused_total",
        "treadle_trajectory_router_resent_total",
        "treadle_trajectory_router_waiting",
        "treadle_trajectory_router_workers",
    },
}
"""Written by hand: a metric that appears or disappears is a change for those who read it."""


@pytest.mark.parametrize("service", METRICS)
def test_each_service_defines_the_metrics_of_the_list(service: str) -> None:
    module = importlib.import_module(f"services.{service}.metrics")
    metrics = [
        metric for each in vars(module).values() if isinstance(each, MetricWrapperBase) for metric in each.collect()
    ]
    assert {f"{one.name}_total" if one.type == "counter" else one.name for one in metrics} == METRICS[service]


def test_metrics_are_defined_in_no_other_module() -> None:
    users = {
        str(path.relative_to(ROOT))
        for folder in ("services", "shared", "treadle")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(
            r"^from prometheus_client import .*(Counter|Gauge|Histogram|Summary)", path.read_text(), re.MULTILINE
        )
    }
    assert users == {f"services/{service}/metrics.py" for service in METRICS}


def test_the_documents_have_every_metric() -> None:
    section = (ROOT / "docs/operations.md").read_text().partition("### Metrics")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set().union(*METRICS.values())
