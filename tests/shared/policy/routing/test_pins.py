"""Pins: compared with a list of all calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.routing.pins import PinnedTrajectory, Pins

steps = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "end", "remove", "restore", "lapse"]),
        st.sampled_from("abcde"),
        st.sampled_from(["w1", "w2"]),
        st.sampled_from([0.0, 1.0, 6.0]),
    ),
    max_size=60,
)


@dataclass
class PinSeen:
    """What the oracle knows of one trajectory."""

    worker: str
    calls: int = 0
    idle_s: float = field(default=0.0)
    pin: PinnedTrajectory | None = None


@given(steps)
def test_pins_are_those_of_calls_and_lapse_when_idle(history: list[tuple[str, str, str, float]]) -> None:
    pins, known, now = Pins(pin_idle_s=10.0, most_pins=100), dict[str, PinSeen](), 0.0
    for what, name, worker, pause_s in history:
        now += pause_s
        if what == "call":
            changed = pins.pin(name, worker, "t", "")
            assert changed == (name not in known or known[name].worker != worker)
            one = known.setdefault(name, PinSeen(worker))
            one.worker, one.calls, one.pin = worker, one.calls + 1, pins.began(name)
        elif what == "end":
            pins.ended(name, known[name].pin if name in known else None, 5, now)
            if name in known and known[name].calls:
                known[name].calls -= 1
                known[name].idle_s = now
        elif what == "remove":
            assert (pins.remove(name) is None) == (known.pop(name, None) is None)
        elif what == "restore" and name not in known:
            pins.restore(name, worker, now)
            known[name] = PinSeen(worker, 0, now)
        elif what == "lapse":
            gone = {name for name, one in known.items() if not one.calls and now - one.idle_s >= 10.0}
            assert set(pins.lapsed(now)) == gone
            known = {name: one for name, one in known.items() if name not in gone}
        pins.check()
        assert {name: pins.worker(name) for name in "abcde"} == {
            name: known[name].worker if name in known else "" for name in "abcde"
        }


def test_above_the_bound_those_idle_for_the_longest_time_go_first() -> None:
    pins = Pins(pin_idle_s=1e9, most_pins=3)
    for number in range(6):
        pins.pin(f"t{number}", "w", "", "")
        pin = pins.began(f"t{number}")
        if number != 0:
            pins.ended(f"t{number}", pin, None, float(number))
    assert pins.lapsed(6.0) == ["t1", "t2", "t3"]
    assert set(pins.by_trajectory) == {"t0", "t4", "t5"}, "one with a call stays"


def test_a_call_of_a_trajectory_that_has_ended_does_not_count_for_the_next_of_this_name() -> None:
    pins = Pins(pin_idle_s=1.0, most_pins=3)
    pins.pin("t", "w1", "", "")
    former = pins.began("t")
    pins.remove("t")
    pins.pin("t", "w2", "", "")
    pins.began("t")
    pins.ended("t", former, None, 0.0)
    assert pins.lapsed(9.0) == []
