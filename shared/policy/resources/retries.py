"""Delay before a call of an external service is repeated: exponential, with full jitter, and not before its own time.

Full jitter spreads the repeats of calls that were refused together (M. Brooker, "Exponential Backoff and Jitter", AWS
2015). A manager of calls and the replay of search agents use the same function.
"""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_DELAY_S: Final = 1.0
"""Longest delay before the second attempt. It doubles up to `LONGEST_DELAY_S`."""
LONGEST_DELAY_S: Final = 60.0
JITTER: Final = 0.1
"""Part of the service's own delay by which repeats are spread."""
MOST_DOUBLINGS: Final = 16


def retry_delay_s(attempt: int, not_before_s: float, rng: Random, longest_s: float = LONGEST_DELAY_S) -> float:
    """Return the seconds between an attempt, counted from 1, and the next one.

    Args:
        attempt: the one that has failed.
        not_before_s: seconds before which the service wants no call; 0 if it has named none.
        rng: source of the jitter.
        longest_s: bound of the backoff; `not_before_s` may be longer.
    """
    backoff_s = rng.uniform(0.0, min(longest_s, FIRST_DELAY_S * 2.0 ** min(attempt - 1, MOST_DOUBLINGS)))
    return max(backoff_s, not_before_s * (1.0 + rng.uniform(0.0, JITTER)))
