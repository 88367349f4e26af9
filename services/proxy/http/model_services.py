"""/v1/services: the model services of all nodes. Read from the nodes' pages, so every replica gives the same answer."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path

from services.proxy.state import CurrentState, ProxyState
from shared.api.model_services import EngineView, ModelServiceList, ModelServiceView
from shared.bus.model_services import read_pages
from shared.messages.model_services import EngineState, ServingPage
from shared.runtime.app import problem_responses
from shared.runtime.errors import NotFound
from shared.runtime.patterns import NAME

router = APIRouter(prefix="/v1/services", tags=["services"])

ServiceName = Annotated[str, Path(pattern=NAME, description="Name of the model service, as in `service` of actions.")]
_HOW: Final = "declare it in the file GPU_MANAGER_SERVICES of a GPU manager"


@router.get("", summary="All model services", responses=problem_responses(422, 503))
async def list_services(proxy: CurrentState) -> ModelServiceList:
    """Declared services, and the state of each of their engines. Reading it wakes no engine."""
    return ModelServiceList(services=await _services(proxy))


@router.get("/{service}", summary="One model service", responses=problem_responses(404, 422, 503))
async def get_service(service: ServiceName, proxy: CurrentState) -> ModelServiceView:
    """A service, and the state of each of its engines. Reading it wakes no engine."""
    for view in await _services(proxy):
        if view.name == service:
            return view
    raise NotFound("model service", service, _HOW)


async def _services(proxy: ProxyState) -> list[ModelServiceView]:
    pages = await read_pages(proxy.redis, proxy.clock.unix())
    names = sorted({name for page in pages for name in page.services})
    return [_view(name, [page for page in pages if name in page.services]) for name in names]


def _view(name: str, pages: list[ServingPage]) -> ModelServiceView:
    """Return a service as the first of its nodes declares it."""
    offer = pages[0].services[name]
    return ModelServiceView(
        name=name,
        backend=offer.backend,
        api=offer.api,
        model=offer.model,
        degrees=offer.degrees,
        concurrency=offer.concurrency,
        awake_gb=offer.awake_gb,
        nodes=[page.node for page in pages],
        engines=[_engine(page.node, one) for page in pages for one in page.engines if one.service == name],
    )


def _engine(node: str, one: EngineState) -> EngineView:
    fields = msgspec.structs.asdict(one)
    del fields["service"]
    return EngineView(node=node, **fields)
