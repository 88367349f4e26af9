"""Traces of answered actions, which are written with their answers."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from services.proxy.metrics import UNTRACED
from shared.bus import traces
from shared.bus.functions import Answering, Deposed
from shared.runtime import log
from shared.runtime.units import Epoch

_log = log.get(__name__)


@dataclass(slots=True)
class AnswerTraces:
    """Traces that one leader writes."""

    redis: Redis
    epoch: Epoch
    _fail: bool = False

    async def write(self, traced: list[Answering]) -> None:
        """Add answered actions to the traces of their trajectories, in the same turn of Valkey as their answers.

        A failure costs the spans, and no answer.

        Raises:
            Deposed: this leader's epoch is over.
        """
        try:
            await traces.trace_actions(self.redis, self.epoch, traced)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001  # a trace is for people: its loss must not end a leader
            UNTRACED.inc(len(traced))
            if not self._fail:
                _log.warning("tracing_failed", actions=len(traced), error=str(error) or type(error).__name__)
            self._fail = True
        else:
            self._fail = False
