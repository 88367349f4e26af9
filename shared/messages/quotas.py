"""Changes of quotas: stream `quota-changes`, read by the leader."""

from __future__ import annotations

from shared.messages.base import Message, Topic
from shared.policy.model.quotas import QuotaLimits


class QuotaChanged(Message, frozen=True, kw_only=True, tag="quota.changed.v1"):
    """A quota was created, changed or deleted."""

    name: str
    limits: QuotaLimits | None = None
    """None: it was deleted."""


QUOTA_CHANGES: Topic[QuotaChanged] = Topic("quota-changes", QuotaChanged, maxlen=1_024)
