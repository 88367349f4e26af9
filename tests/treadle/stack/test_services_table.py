from pathlib import Path

import pytest

from shared.runtime.stack_state import StackError
from treadle.stack.plan import without_password
from treadle.stack.services import SERVICES, ServiceSpec, chosen_services, unused_file

PROXY = SERVICES[0]


def test_the_proxy_listens_on_loopback_8700_by_default() -> None:
    assert PROXY.address({}) == ("127.0.0.1", 8700)
    assert PROXY.address({"PROXY_PORT": "9000", "PROXY_HOST": "0.0.0.0"}) == ("0.0.0.0", 9000)


@pytest.mark.parametrize("port", ["", "-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(StackError, match="PROXY_PORT"):
        PROXY.address({"PROXY_PORT": port})


def test_services_are_chosen_by_name_or_brought_along() -> None:
    assert [one.name for one in chosen_services("", {}) if one.name != "gpu_manager"] == [
        "proxy", "scaling_planner", "cpu_manager", "quota_manager", "trajectory_router"
    ]  # fmt: skip
    assert chosen_services("proxy, echo=some.module:make", {}) == (PROXY, ServiceSpec("echo", "some.module:make"))
    with pytest.raises(StackError, match="proksy"):
        chosen_services("proksy", {})


def test_a_gpu_manager_runs_where_there_are_gpus_or_described_ones() -> None:
    described = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]'}
    assert "gpu_manager" in [one.name for one in chosen_services("", described)]
    assert [one.name for one in chosen_services("gpu_manager", {})] == ["gpu_manager"]
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert "gpu_manager" not in [one.name for one in chosen_services("", {})]


def test_a_file_of_model_services_without_a_gpu_manager_is_a_warning() -> None:
    file = {"GPU_MANAGER_SERVICES": "services.json"}
    assert not unused_file({})
    assert not unused_file(file | {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]'})
    assert not unused_file(file | {"STACK_SERVICES": "cpu_manager"}), "a choice of its own"
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert "GPU_MANAGER_SERVICES names services.json" in unused_file(file)


def test_names_are_those_that_an_environment_variable_can_carry() -> None:
    assert all(spec.name.isidentifier() for spec in SERVICES)
    assert len({spec.name for spec in SERVICES}) == len(SERVICES)


def test_a_foreign_server_is_shown_without_its_password() -> None:
    assert without_password("redis://ada:secret@db:6379/0") == "redis://ada:***@db:6379/0"
    assert without_password("unix:///run/valkey.sock?db=1") == "unix:///run/valkey.sock?db=1"
