"""The pages /docs and /redoc need nothing from the internet."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.runtime.app import build_app


@asynccontextmanager
async def nothing(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    yield {}


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_a_page_and_all_it_loads_come_from_the_service(page: str) -> None:
    transport = httpx.ASGITransport(build_app("test", nothing))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        html = (await client.get(page)).raise_for_status().text
        loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
        assert any(name.endswith(".js") for name in loaded)
        for name in loaded:
            assert name.startswith("/"), f"{page} loads {name} from elsewhere"
            assert (await client.get(name)).raise_for_status().content
    assert not re.findall(r"@import|url\(http", html)
