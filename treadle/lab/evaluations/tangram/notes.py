"""Why our figures differ from the paper's, in a sentence or two each. How each was measured: docs/replay-tangram.md."""

from __future__ import annotations

SMALL = (
    "8(a), small batches: with cores for all, pods differ from ours by the wait for a pod and by four processes "
    "instead of 32. With test suites in one process, as data sets have them (§5.2), the ratio nearly doubles."
)
LARGE = (
    "8(a), batch 1,536: 27.7 times needs a control plane that collapses, and none of the sweep gives both that and "
    "4.33 times at 1,280. 5 pods a second with a timeout of a minute give 37 and 26, with two minutes 13 and 7; 10 a "
    "second with half a minute give 15 at both. Rate and timeout are unpublished."
)
LOAD = (
    "8(a) and 9, 768 cores: with environments active for 47% of their life, 1,280 trajectories need more core-seconds "
    "than 768 cores have while they think. There every system queues or runs narrow, and a DoP of 4 is nearly right. "
    "With rewards half as long pods are 2.8 times slower there, and 3.4 times at 1,280 cores."
)
WIDE = (
    "9, DoP 16: how far it falls behind hangs on what sixteen cores waste, so on the assumed serial part: a tenth here;"
    " with a twentieth it is 1.4 times slower instead of 2."
)
QUEUEING = (
    "Table 1, queueing: ours runs narrow where the paper's waits; the sum of queueing and execution is what compares."
)

NOTES: tuple[str, ...] = (SMALL, LARGE, LOAD, WIDE, QUEUEING)
"""For the evaluation with seed 1, as it is run by default."""
