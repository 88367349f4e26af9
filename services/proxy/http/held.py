"""Held calls of `/run_code`: the headers leave early, then a space every few seconds until the answer exists.

`requests` (verl, the SandboxFusion client) measures its timeout between bytes, and JSON may begin with blanks. So a
held caller waits as long as the queue takes. Otherwise it would give up and score a correct program as wrong.

Laws:
  - a rejection is sent before the headers, as 504: a bad body, too many held calls, a journal that does not accept;
  - the status is 200 once the headers have left; a later failure is a SandboxError in the body;
  - a lost action (node, sandbox or store lost it) is submitted again, until `hold_s` is over;
  - when a caller's connection ends, its action is cancelled; also when the proxy ends (`replicas`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
from redis.exceptions import OutOfMemoryError

from services.proxy.http.call import Call
from services.proxy.http.replies import Reply, Streamed
from services.proxy.http.retries import RunCodeRetries
from services.proxy.leader.replicas import PROXY_GONE
from services.proxy.metrics import HELD, RESUBMITTED, RUN_CODE
from services.proxy.records.ids import random_id
from services.proxy.settings import ProxySettings
from services.proxy.state import ProxyState
from shared.bus.connection import TRANSIENT
from shared.messages.actions import ActionSubmitted
from shared.runtime import log
from shared.runtime.errors import DeadlineMissed, Overloaded, TreadleError, Unavailable
from shared.runtime.process_names import process_name
from shared.runtime.units import Seconds

_log = log.get(__name__)

HEADERS_AFTER_S: Seconds = 0.5
"""An answer within this time is sent whole, with its length. After it the headers leave."""
LOOK_S: Seconds = 30.0
"""Interval of the check that the store still has the action."""
FIRST_PAUSE_S: Seconds = 1.0
"""Pause before a lost action is submitted again. It doubles up to `LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S: Seconds = 30.0
LOST = frozenset({"sandbox-lost", "node-lost", "unknown-outcome"})
"""Ends of an action after which a held call submits it again."""
RUN_CODE_ENDS = ("answered", "late", "gave-up", "disconnected", "stopped")
HELD_HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
"""A reverse proxy must pass each byte on at once. nginx reads the second header."""

Compose = Callable[[bytes], Reply]
"""Converts an action's stored answer to the contract's reply."""
Failure = Callable[[str], bytes]
"""Converts an infrastructure failure's message to the contract's body."""


class _Ended(msgspec.Struct, frozen=True):
    ended: str
    reason: str = ""

    @property
    def is_lost(self) -> bool:
        """True if the mesh lost it. `PROXY_GONE` here means that a suspended proxy was treated as failed."""
        return self.ended in LOST or (self.ended == "cancelled" and self.reason == PROXY_GONE)


_ended = msgspec.json.Decoder(_Ended)


class HeldCalls:
    """Decides which callers are held, and counts them."""

    def __init__(self, settings: ProxySettings, retries: RunCodeRetries) -> None:
        self._settings = settings
        self._retries = retries
        self.replica = process_name()
        """Name of this replica, recorded with each held action."""
        self._count = 0
        for ended in RUN_CODE_ENDS:  # so that each is shown as 0 from the start
            RUN_CODE.labels(ended)

    def holds(self, call: Call) -> bool:
        """Return whether this caller is held. HTTP/1.0 callers are not, because it has no chunks."""
        if self._settings.hold == "never" or call.http_version == "1.0":
            return False
        agent = call.header(b"user-agent") or ""
        return self._settings.hold == "always" or agent.lower().startswith("python-requests")

    async def serve(
        self, call: Call, submitted: ActionSubmitted, compose: Compose, failure: Failure
    ) -> Reply | Streamed:
        """Submit the action, and hold its caller until the answer exists.

        Raises:
            DeadlineMissed: too many calls are held, the action was not accepted, or it failed before the headers left.
        """
        if self._count >= self._settings.max_held:
            raise DeadlineMissed(what=f"this replica holds {self._count} calls; retry")
        self._count += 1
        HELD.set(self._count)
        call.at_end(self._leave)
        submitted = msgspec.structs.replace(submitted, held_by=self.replica)
        held = _Held(call, submitted, self._settings, self._retries, compose)
        call.at_end(held.close)
        await held.submit()
        if (reply := await held.settled(HEADERS_AFTER_S)) is not None:
            return reply
        return Streamed(held.parts(failure), headers=HELD_HEADERS)

    def _leave(self) -> None:
        self._count -= 1
        HELD.set(self._count)


class _Held:
    """One held call, from the acceptance of its action to its reply."""

    def __init__(
        self, call: Call, submitted: ActionSubmitted, settings: ProxySettings, retries: RunCodeRetries, compose: Compose
    ) -> None:
        self._proxy: ProxyState = call.proxy
        self._submitted = msgspec.structs.replace(submitted, budget_s=settings.hold_s, start_within_s=None)
        self._settings = settings
        self._retries = retries
        self._compose = compose
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + settings.hold_s
        self._answer = self._proxy.waiters.expect(self._submitted.action)
        self._gone = asyncio.create_task(call.gone(), name="held caller")
        self._serving: asyncio.Task[Reply] | None = None
        self._replied = False

    async def submit(self) -> None:
        """Submit the action. On an error of `Intake.submit` the caller is not held."""
        try:
            await self._proxy.intake.submit(self._submitted)
        except Overloaded:
            self._replied = True  # nothing was accepted; after any other error the action may be accepted
            raise
        self._serving = asyncio.create_task(self._serve(), name="held call")

    async def settled(self, within_s: Seconds) -> Reply | None:
        """Return the reply if it comes in time, an empty one if the caller has gone, else None.

        Raises:
            DeadlineMissed: there will be no answer.
        """
        assert self._serving is not None
        await asyncio.wait({self._serving, self._gone}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._replied = True
            reply = self._serving.result()
            RUN_CODE.labels("answered").inc()
            return reply
        return Reply(200, b"") if self._gone.done() else None

    async def parts(self, failure: Failure) -> AsyncIterator[bytes]:
        """Yield blanks, then the body. Yields nothing more once the caller has gone."""
        try:
            yield b" "
            while (reply := await self.settled(self._settings.hold_blank_s)) is None:
                yield b" "
            body = reply.body
        except DeadlineMissed as error:
            RUN_CODE.labels("gave-up").inc()
            _log.warning("held_call_expired", action=self._submitted.action, reason=str(error))
            body = failure(str(error))
        except Exception as error:  # noqa: BLE001  # the status has left, so only the body can report the failure
            _log.error("held_call_crashed", action=self._submitted.action, exc_info=error)
            body = failure("internal error")
        except asyncio.CancelledError:  # the server stops, and its grace period is over
            self._replied = True
            await self._retries.cancel_and_stop(self._submitted.action, "its proxy stops")
            RUN_CODE.labels("stopped").inc()
            body = failure("this proxy is stopping; send the call again")
        if body:
            yield body

    def close(self) -> None:
        """Called when the reply was sent or cannot be sent. Cancel the action if it has no answer."""
        if self._gone.done() and not self._replied:
            RUN_CODE.labels("disconnected").inc()
        self._gone.cancel()
        if self._serving is not None and not self._serving.cancel() and not self._serving.cancelled():
            self._serving.exception()  # read it here, because the caller may have gone before
        self._proxy.waiters.discard(self._submitted.action, self._answer)
        if not self._replied:
            self._retries.cancel(self._submitted.action, "its caller has gone")

    async def _serve(self) -> Reply:
        """Return the reply of the first attempt that is not lost.

        Raises:
            DeadlineMissed: the hold is over, or the action has no verdict and a repeat would not change that.
        """
        pause_s = FIRST_PAUSE_S
        try:
            async with asyncio.timeout_at(self._until):
                while True:
                    raw = await self._answered()
                    if raw is not None and not _ended.decode(raw).is_lost:
                        return self._compose(raw)
                    await asyncio.sleep(pause_s)
                    pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                    await self._submit_again()
        except TimeoutError:
            self._retries.cancel(self._submitted.action, "the hold is over")
            raise DeadlineMissed(what=f"no answer within the {self._settings.hold_s:g} s of a held call") from None

    async def _answered(self) -> bytes | None:
        """Return the action's answer; None if the store has neither the action nor its answer."""
        while True:
            await asyncio.wait({self._answer}, timeout=LOOK_S)
            if self._answer.done():
                return self._answer.result()
            with suppress(Unavailable, Overloaded, OutOfMemoryError, *TRANSIENT):
                if await self._proxy.store.action(self._submitted.action) is None and not self._answer.done():
                    return None

    async def _submit_again(self) -> None:
        """Submit the same work under a new id, with the remaining time of the hold. Retries while the store rejects."""
        RESUBMITTED.inc()
        self._proxy.waiters.discard(self._submitted.action, self._answer)
        action, left_s = random_id(), max(1.0, self._until - self._loop.time())
        self._submitted = msgspec.structs.replace(self._submitted, action=action, budget_s=left_s)
        self._answer = self._proxy.waiters.expect(action)
        while True:
            try:
                await self._proxy.intake.submit(self._submitted)
            except (TreadleError, OutOfMemoryError, *TRANSIENT) as error:
                _log.warning("held_call_resubmission_failed", error=str(error))
                await asyncio.sleep(LONGEST_PAUSE_S)
            else:
                return
