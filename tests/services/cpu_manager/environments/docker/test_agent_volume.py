"""The name of the volume identifies its owner and its contents."""

from services.cpu_manager.environments.docker.agent_volume import AgentVolume
from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.engine import ContainerEngine


async def test_a_later_manager_of_the_node_uses_the_same_volume_and_another_mesh_its_own() -> None:
    async with ContainerEngine("unix:///nowhere") as engine:
        first, again = (AgentVolume(engine, Owner("Node", "a" * 16)).name for _ in range(2))
        other = AgentVolume(engine, Owner("Node", "b" * 16)).name
    assert first == again
    assert first.startswith("treadle-agent-node-")
    assert first != other
