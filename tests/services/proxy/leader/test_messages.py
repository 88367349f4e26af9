"""Messages of nodes as stimuli of the dispatcher."""

from __future__ import annotations

import math

from services.proxy.leader.messages import to_services
from shared.messages.outcomes import ServiceHeld, ServicesChanged
from shared.policy.model.chunks import Chunk


def test_a_report_of_model_services_keeps_chunks_and_believable_times() -> None:
    held = ServiceHeld(service="a", degrees=[1, 2], concurrency=4, awake_gb=16.0, resident=[(2, 2)],
                       restore_s={1: 2.0, 2: 9.0, 4: math.inf, 8: math.nan},
                       evict_s={1: 3.0, 2: -1.0, 4: math.inf, 8: math.nan})  # fmt: skip
    changed = ServicesChanged(
        node="n", incarnation="1", resource="gpus", services=[held], device_gb=[24.0] * 4, bad=[0], released=[1]
    )
    stimulus = to_services(changed)
    found = stimulus.services["a"]
    assert (found.degrees, found.concurrency, found.resident) == ((1, 2), 4, frozenset({Chunk(2, 2)}))
    assert found.restore_s == {1: 2.0, 2: 9.0}
    assert found.evict_s == {1: 3.0}
    assert (stimulus.bad, stimulus.released) == ((0,), (1,))
