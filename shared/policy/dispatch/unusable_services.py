"""Model services that present nodes know and cannot use, because their entries are wrong there.

Law (tests/shared/policy/dispatch/test_unusable_services.py): a new action is refused at once if no present node could
take it, all nodes of its pool have reported what they have, and one of them cannot use its service. The answer has the
reason of that node. Accepted work waits as stuck work, because the entry may be corrected before its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_SERVICES: Final = 1024
"""Most services of one node whose reasons are kept."""
MOST_CHARS: Final = 512
"""Most characters of one reason."""


@dataclass(slots=True)
class UnusableServices:
    """Reports of present nodes. Bounded by `MOST_SERVICES` for each."""

    _reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> service -> reason. Nodes without one are left out."""

    def report(self, node: str, problems: Mapping[str, str]) -> None:
        """Apply a node's report. O(services)."""
        self._reasons.pop(node, None)
        if problems:
            kept = list(problems.items())[:MOST_SERVICES]
            self._reasons[node] = {name: why[:MOST_CHARS] for name, why in kept}

    def forget(self, node: str) -> None:
        """Forget a node that has gone."""
        self._reasons.pop(node, None)

    def why(self, service: str) -> str:
        """Return why a service cannot be used, by the first node that reports it; empty: none does. O(nodes with
        wrong entries).
        """
        nodes = sorted(node for node, reasons in self._reasons.items() if service in reasons)
        if not service or not nodes:
            return ""
        return f"{nodes[0]} cannot use the model service {service!r}: {self._reasons[nodes[0]][service]}"
