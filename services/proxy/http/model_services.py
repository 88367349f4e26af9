"""/v1/services: the model services of all nodes, read from the nodes' pages, and their declaration over REST.

Declarations are stored in Valkey, and each GPU manager applies them at its heartbeat. So every replica gives the same
answer, and no restart loses one. There are no keys yet, so any caller may declare: a reference to an entry of an
operator's file everywhere, a whole entry only where an operator allows commands. The manager checks that once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response

from services.proxy.http.openapi.schemas import ref
from services.proxy.http.service_views import gpu_views, service_views
from services.proxy.state import CurrentState, ProxyState
from shared.api.model_services import ModelServiceList, ModelServiceView
from shared.bus.model_services import declare_service, read_declared, read_pages
from shared.messages.model_services import ServingPage
from shared.model_services.entries import MOST_SERVICES
from shared.model_services.references import (
    MOST_BODY,
    Declaration,
    ServiceReference,
    check_reference,
    read_declaration,
)
from shared.runtime.app import problem_responses
from shared.runtime.errors import BadRequest, Conflict, NotFound, TooLarge
from shared.runtime.patterns import NAME

router = APIRouter(prefix="/v1/services", tags=["services"])

ServiceName = Annotated[str, Path(pattern=NAME, description="Name of the model service, as in `service` of actions.")]
MOST_LISTED: Final = 16
"""Names of entries in a message."""
_HOW: Final = "declare it in the file GPU_MANAGER_SERVICES of a GPU manager, or with PUT /v1/services/NAME"
_FILE: Final = "GPU_MANAGER_SERVICES"
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {"application/json": {"schema": ref("ServiceDeclaration")}},
}


@router.get("", summary="All model services", responses=problem_responses(422, 503))
async def list_services(proxy: CurrentState) -> ModelServiceList:
    """Declared services, the state of each of their engines, and the GPUs of all nodes. Reading it wakes no engine."""
    pages = await read_pages(proxy.redis, proxy.clock.unix())
    return ModelServiceList(services=service_views(pages, await read_declared(proxy.redis)), gpus=gpu_views(pages))


@router.get("/{service}", summary="One model service", responses=problem_responses(404, 422, 503))
async def get_service(service: ServiceName, proxy: CurrentState) -> ModelServiceView:
    """A service, and the state of each of its engines. Reading it wakes no engine."""
    for view in await _services(proxy):
        if view.name == service:
            return view
    raise NotFound("model service", service, _HOW)


@router.put(
    "/{service}",
    summary="Declare or change a model service",
    responses=problem_responses(403, 404, 409, 413, 422, 503),
    openapi_extra={"requestBody": _BODY, "x-codegen-request-body-name": "body"},
)
async def put_service(service: ServiceName, request: Request, proxy: CurrentState) -> ModelServiceView:
    """A body with `entry` refers to an entry of the file of a GPU manager: under the entry's name it changes that
    entry, under another name it makes a second service of its command and model. A whole entry has commands, so it
    needs `GPU_MANAGER_ALLOW_COMMANDS=true` at a GPU manager. Each node applies the change at its next heartbeat: it
    drains and stops engines of a changed entry, and calls that wait go to the new ones.
    """
    body = await request.body()
    if len(body) > MOST_BODY:
        raise TooLarge(limit_bytes=MOST_BODY)
    pages = await read_pages(proxy.redis, proxy.clock.unix())
    declaration = read_declaration(body, allow_commands=any(page.allows_commands for page in pages))
    _check_name(service, declaration, pages)
    if declaration.reference is not None:
        _check_reference(service, declaration.reference, pages)
    known = {*(await read_declared(proxy.redis)).services, *(name for page in pages for name in page.file)}
    full = f"there are {MOST_SERVICES} model services, which is the most; delete one with DELETE /v1/services/NAME"
    if service not in known and len(known) >= MOST_SERVICES:
        raise BadRequest(what=full)
    if not await declare_service(proxy.redis, service, declaration, most=MOST_SERVICES):
        raise BadRequest(what=full)
    return await get_service(service, proxy)


@router.delete(
    "/{service}", status_code=204, summary="Remove a declaration over REST", responses=problem_responses(409, 422, 503)
)
async def delete_service(service: ServiceName, proxy: CurrentState) -> Response:
    """Nodes drain and stop its engines; work that waits for it is stuck until it is declared again. A changed entry of
    a file is again as the file has it.
    """
    if not await declare_service(proxy.redis, service, None, most=MOST_SERVICES):
        for page in await read_pages(proxy.redis, proxy.clock.unix()):
            if service in page.file or service in page.wrong:
                what = f"{service} is an entry of the file {_FILE} of the node {page.node}; remove it there"
                raise Conflict(what=what)
    return Response(status_code=204)


def _check_name(service: str, declaration: Declaration, pages: Sequence[ServingPage]) -> None:
    """Check that a name of a file is used for its own entry alone.

    Raises:
        Conflict: it would be used for another one.
    """
    reference = declaration.reference
    if reference is not None and reference.entry == service:
        return
    for page in pages:
        if service in page.file or service in page.wrong:
            raise Conflict(
                what=f"{service} is an entry of the file GPU_MANAGER_SERVICES of the node {page.node}; change it with "
                f'{{"entry": "{service}", "concurrency": 2}}, or declare the service by another name'
            )


def _check_reference(service: str, reference: ServiceReference, pages: Sequence[ServingPage]) -> None:
    """Check that a node can use a reference.

    Raises:
        BadRequest: none can.
    """
    problem = ""
    for page in pages:
        if (entry := page.file.get(reference.entry)) is not None:
            try:
                check_reference(service, reference, entry)
            except ValueError as error:
                problem = problem or str(error)
            else:
                return
        elif (why := page.problems.get(reference.entry)) is not None:
            problem = problem or f"entry: {page.node} cannot use {reference.entry!r}: {why}"
    names = sorted({name for page in pages for name in page.file})
    listed = ", ".join(names[:MOST_LISTED]) or "none"
    raise BadRequest(
        what=problem
        or f"entry: {reference.entry!r} is in no file GPU_MANAGER_SERVICES of a running GPU manager; the entries are "
        f"{listed}"
    )


async def _services(proxy: ProxyState) -> list[ModelServiceView]:
    return service_views(await read_pages(proxy.redis, proxy.clock.unix()), await read_declared(proxy.redis))
