"""The service that kernels use: alone awake on its GPU, beside engines that sleep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_manager.kinds import KERNELS
from services.gpu_manager.own_chunk import LEAST_GB, own_entry, own_spec
from shared.policy.serving import model
from shared.policy.serving.model import InstanceId
from tests.shared.policy.serving.node_driver import Driver, on, service

GPU_GB = 80.0
ON_GPU = on(KERNELS)
Gigabytes = st.floats(0.1, 79.0)


def needs(*awake_gb: float) -> float:
    return own_entry([GPU_GB], awake_gb).awake_gb(1)


@given(st.lists(Gigabytes, min_size=1))
def test_no_awake_engine_has_room_beside_a_kernel_and_a_kernel_has_room_alone(awake_gb: list[float]) -> None:
    needed = needs(*awake_gb)
    assert LEAST_GB <= needed <= GPU_GB
    assert all(needed + awake > GPU_GB for awake in awake_gb)


@given(st.lists(st.floats(4.0, 79.0), min_size=1), st.floats(0.0, 0.99))
def test_what_sleeps_has_room_as_far_as_the_smallest_engine_awake(awake_gb: list[float], share: float) -> None:
    asleep_gb = share * min(*awake_gb, GPU_GB - LEAST_GB)
    assert needs(*awake_gb) + asleep_gb <= GPU_GB + 0.02


def test_without_other_services_the_driver_has_a_rest() -> None:
    assert GPU_GB * 0.95 < needs() < GPU_GB
    assert own_entry([24.0, 80.0]).awake_gb(1) < 24.0, "it fits on the smallest"
    assert own_entry([24.0, 80.0], [16.0]).awake_gb(1) <= 24.0


def begun(commands: list[model.Command]) -> list[tuple[str, InstanceId]]:
    steps = (model.LoadEngine, model.Restore, model.RunCanary, model.Evict, model.Stop)
    return [(type(command).__name__, command.instance) for command in commands if isinstance(command, steps)]


@pytest.mark.parametrize(
    ("asleep_gb", "way", "back"),
    [(1.0, "Evict", "Restore"), (47.995, "Stop", "LoadEngine")],
)
def test_an_engine_sleeps_through_a_kernel_if_what_it_keeps_has_room(asleep_gb: float, way: str, back: str) -> None:
    driver, teacher = Driver(device_gb=(GPU_GB,)), on("teacher")
    driver.set(service("teacher", 48.0, levels=("asleep1", "cold"), asleep_gb={"asleep1": asleep_gb}))
    driver.set(own_spec(own_entry([GPU_GB], [48.0])))
    driver.resident(teacher)
    assert begun(driver.want("kernel", ON_GPU)) == [(way, teacher)]
    assert begun(driver.step(teacher)) == [("LoadEngine", ON_GPU)]
    driver.step(ON_GPU)
    driver.step(ON_GPU)
    driver.end("kernel")
    assert begun(driver.want("pupil", teacher)) == [("Stop", ON_GPU)], "the kernels leave at no cost"
    assert begun(driver.step(ON_GPU)) == [(back, teacher)]
