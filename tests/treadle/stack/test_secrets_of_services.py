"""Secrets of one service: no other process of a stack receives them in its environment."""

from __future__ import annotations

from pathlib import Path

from shared.runtime.settings import load
from treadle.stack.home import open_home
from treadle.stack.plan import plan_stack
from treadle.stack.services import chosen_services
from treadle.stack.settings import StackSettings

ENVIRON = {
    "TREADLE_REDIS_URL": "redis://127.0.0.1:1/0",
    "TREADLE_DATABASE_URL": "postgresql+asyncpg://a:b@127.0.0.1:1/c",
    "PROXY_PORT": "0",
    "QUOTA_SECRET_JUDGE_KEY": '{"value": "confidential"}',
}


def test_only_the_quota_manager_receives_its_secrets(stack_home: Path) -> None:
    plan = plan_stack(open_home(stack_home), load(StackSettings), ENVIRON, chosen_services("", ENVIRON))
    launches = [plan.prepare, *(one.launch for one in (*plan.servers, *plan.services))]
    names = {launch.name for launch in launches}
    assert names == {"prepare", "proxy", "scaling_planner", "cpu_manager", "quota_manager", "trajectory_router"}
    holders = [launch.name for launch in launches if "confidential" in str(launch.env)]
    for one in plan.services:
        assert one.listen_socket is not None
        one.listen_socket.close()
    assert holders == ["quota_manager"]
