"""Readiness while Valkey answers and no proxy leads: 503 with the reason, and 200 when one leads again."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import LEASE_S, is_ready, leads, until

SELDOM_S = 1200.0
"""The lease of a replica that follows: it looks eight times in it whether anybody leads."""


@pytest.fixture
def leader(redis_url: str) -> Iterator[Service]:
    with running_service("proxy", redis_url, PROXY_LEASE_S=str(LEASE_S)) as running:
        yield running


@pytest.fixture
def follower(leader: Service, redis_url: str) -> Iterator[Service]:
    with running_service("proxy", redis_url, PROXY_LEASE_S=str(SELDOM_S)) as running:
        yield running


def readiness(service: Service) -> tuple[int, str]:
    """(status, body) of `/readyz`."""
    try:
        with urllib.request.urlopen(service.url + "/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(service: Service) -> dict[str, object]:
    with urllib.request.urlopen(service.url + "/v1/health", timeout=30) as answer:
        return dict(json.load(answer))


async def test_a_proxy_is_unready_without_a_leader(leader: Service, follower: Service) -> None:
    await until(lambda: leads(leader))
    await until(lambda: is_ready(follower))
    assert not leads(follower)

    leader.freeze()  # it does not renew its lease, which lapses
    await until(lambda: not is_ready(follower))
    status, reason = readiness(follower)
    assert (status, "no proxy leads: what is accepted waits for a leader" in reason) == (503, True), reason
    await until(lambda: health(follower)["leader"] is False)
    assert health(follower)["valkey"]["answers"] is True  # type: ignore[index]
    assert "no proxy leads: what is accepted waits for a leader" in health(follower)["problems"]  # type: ignore[operator]

    leader.thaw()
    await until(lambda: is_ready(follower))
    await until(lambda: leads(leader))
    assert readiness(follower)[0] == readiness(leader)[0] == 200
    await until(lambda: health(follower)["leader"] is True)
