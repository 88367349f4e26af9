"""Amounts that actions reserve of quotas: declared, or learned from what earlier ones have used."""

from __future__ import annotations

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import Request, Work
from shared.policy.model.quotas import LEARNED, Amounts
from shared.policy.resources.settling import believable


def estimate_amounts(cluster: ClusterState, action: ActionState) -> None:
    """Set the amounts of an action that leaves some to the mesh to the present estimates. So what is granted follows
    what is known then, also for work that was submitted before anything was learned.
    """
    if action.estimated:
        action.amounts = estimated(
            cluster, action.request.tenant, _work(action.request, action.work), action.work.quotas
        )


def estimated(cluster: ClusterState, tenant: str, work: str, amounts: Amounts) -> Amounts:
    """Return amounts with the present estimates of those that are left to the mesh. `work`: task, otherwise kind."""
    return {
        name: cluster.estimates.expect((tenant, work, name), cluster.quotas.limits.get(name))
        if amount == LEARNED
        else amount
        for name, amount in amounts.items()
    }


def learn_amounts(cluster: ClusterState, action: ActionState, used: Amounts) -> None:
    """Learn what an attempt of an action's present stage has really used."""
    for name, amount in believable(used, action.work.quotas).items():
        cluster.estimates.learn((action.request.tenant, _work(action.request, action.work), name), amount)


def _work(request: Request, work: Work) -> str:
    return request.task or work.kind
