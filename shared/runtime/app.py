"""Base of every service: problem+json errors, health, metrics, and hot routes in front of FastAPI.

Hot routes are bare ASGI handlers, at a third of FastAPI's cost per request. They are documented in the same OpenAPI
document, and their errors have the same format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from shared.runtime import log
from shared.runtime.errors import PROBLEM_TYPE, BadRequest, TreadleError
from shared.runtime.validation import explain_details

_log = log.get(__name__)

READY_DEADLINE_S = 2.5
"""Time limit of a readiness check. The supervisor's probe waits 3 s."""

PROBLEM_JSON = "application/problem+json"

Ready = Callable[[FastAPI], Awaitable[str | None] | str | None]
"""Returns why a service is not ready, or None when it is."""


class Problem(BaseModel):
    """An error as RFC 9457 writes it. Extension members depend on `type`."""

    type: str = Field(description="Identifier of the kind of problem.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status again.")
    detail: str = Field(description="What happened, with an instruction.")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI entries for a route's error statuses."""
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"model": Problem, "content": content, "description": "Problem"} for status in statuses}


def _problem(document: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(document, status, headers, media_type=PROBLEM_JSON)


def problem_response(error: TreadleError) -> Response:
    """Return an error as problem+json."""
    return _problem(error.problem(), error.status, error.headers())


async def _on_treadle_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, TreadleError)
    return problem_response(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem_response(BadRequest(what=f"the body is not JSON: {first['ctx']['error']} at {first['loc'][-1]}"))
    return problem_response(BadRequest(what=explain_details(first)))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # FastAPI's status for a body that is not text; ours for every bad body is 422
        return problem_response(BadRequest(what=error.detail))
    headers, detail = dict(error.headers or {}), error.detail
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods_at(request))
        detail = f"use {headers['Allow']}"
    if error.status_code == 404:
        detail = f"nothing is served at {request.url.path}; see /openapi.json"
    document = {
        "type": f"{PROBLEM_TYPE}http-{error.status_code}",
        "title": error.detail,
        "status": error.status_code,
        "detail": detail,
    }
    return _problem(document, error.status_code, headers)


async def _refuse_unknown_query(request: Request) -> None:
    """Reject misspelt query parameters, which FastAPI would ignore.

    Raises:
        BadRequest: the query has a parameter that the route does not document.
    """
    if request.scope["query_string"]:
        operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
        names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        for name in request.query_params:
            if name not in names:
                raise BadRequest(what=unknown_query(name, names))


def unknown_query(name: str, known: Collection[str]) -> str:
    """Return the message for a query with the unknown parameter `name`."""
    return f"unknown query parameter {name[:64]!r}; there is {', '.join(known) or 'none'}"


def _methods_at(request: Request) -> list[str]:
    """Return every documented method of this path. Starlette only returns those of its first matching route."""
    found: set[str] = set()
    for path, methods in request.app.openapi()["paths"].items():
        if compile_path(path)[0].fullmatch(request.url.path):
            found |= {method.upper() for method in methods}
    return sorted(found)


async def _on_crash(request: Request, error: Exception) -> Response:
    _log.error("request_crashed", method=request.method, path=request.url.path, exc_info=error)
    return problem_response(TreadleError())


def _frame(ready: Ready | None) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/healthz", summary="Liveness of the process")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Readiness of the process", responses=problem_responses(503))
    async def readyz(request: Request) -> Response:
        why = ready(request.app) if ready else None
        if why is not None and not isinstance(why, str):
            try:
                async with asyncio.timeout(READY_DEADLINE_S):
                    why = await why
            except TimeoutError:
                why = f"the check did not end in {READY_DEADLINE_S:g} s: a store does not answer"
        if why is None:
            return JSONResponse({"status": "ready"})
        document = {"type": PROBLEM_TYPE + "not-ready", "title": "Not ready", "status": 503, "detail": why}
        return _problem(document, 503)

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return router


def build_app(
    name: str,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Any]],
    *routers: APIRouter,
    ready: Ready | None = None,
    description: str = "",
) -> FastAPI:
    """Return a service's FastAPI app with the parts that all services share.

    Args:
        name: the service's name, e.g. "proxy".
        lifespan: creates and closes the service's state, and yields it.
        routers: the service's routes. An unknown query parameter is rejected.
        ready: returns why the service is not ready, or None.
        description: for the OpenAPI document.
    """
    # The pages /docs and /redoc use files from the package. FastAPI's own pages fetch files from the internet.
    app = FastAPIOffline(
        title=f"Treadle {name}",
        version="1",
        lifespan=lifespan,
        description=description,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # operationId: the names of generated clients' methods
        # Services have metrics and logs of their own, and to look for OpenTelemetry costs each request 7 us.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.add_exception_handler(TreadleError, _on_treadle_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_crash)
    for router in routers:
        app.include_router(router, dependencies=[Depends(_refuse_unknown_query)])
    app.include_router(_frame(ready))  # no query check: probes and scrapers may add parameters
    return app
