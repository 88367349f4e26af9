"""The filter of either machine, run by a small interpreter of classic BPF: its answer to each call.

The calls are those of `literal_calls`, which imports nothing from the sandbox.
"""

import errno
import struct
from dataclasses import replace

import pytest

from shared.walls import seccomp
from shared.walls.seccomp import Rules
from tests.services.cpu_manager.sandbox.literal_calls import ALLOWED, REFUSED, RUNGS, Call

_ALLOW, _KILL, _NOTIFY = 0x7FFF0000, 0x80000000, 0x7FC00000
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_READ = {"x86_64": 0, "aarch64": 63}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_CLONE = {"x86_64": 56, "aarch64": 220}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_LAST = 600
"""Above every system call there is."""

GROUPED = Rules(namespaces=True)
RULES = {
    "G": GROUPED,
    "N": Rules(namespaces=True, counted=False),
    "L": Rules(namespaces=False, counted=False),
}


def answer(machine: str, number: int, *arguments: int, arch: int | None = None, rules: Rules = GROUPED) -> int:
    """Run the filter on one call. Raises IndexError if a jump leaves the program."""
    steps = list(struct.iter_unpack("=HBBI", seccomp.assemble(machine, rules)))
    data = struct.pack("=IIQ6Q", number, _ARCH[machine] if arch is None else arch, 0, *(*arguments, *[0] * 6)[:6])
    return walk(steps, data)


def walk(steps: list[tuple[int, int, int, int]], data: bytes) -> int:
    position, accumulator = 0, 0
    while True:
        code, when, otherwise, value = steps[position]
        position += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += when if holds else otherwise


def error(number: int) -> int:
    return 0x00050000 | number


def meant(word: str) -> int:
    """An answer of the literal list as the filter gives it."""
    return {".": _ALLOW, "allow": _ALLOW, "init": _NOTIFY}.get(word) or error(getattr(errno, word))


@pytest.mark.parametrize("rung_letter", RUNGS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
class TestAgainstTheLiteralList:
    def answers(self, machine: str, rung_letter: str) -> dict[int, int]:
        """Answers by number, with harmless arguments: a family, a process and a priority that are allowed."""
        rules = RULES[rung_letter]
        steps = list(struct.iter_unpack("=HBBI", seccomp.assemble(machine, rules)))

        def of(number: int) -> int:
            first = 1 if number == _SOCKETPAIR[machine] or (number == _SOCKET[machine]) else 0
            return walk(steps, struct.pack("=IIQ6Q", number, _ARCH[machine], 0, first, 0, 0, 0, 0, 0))

        return {number: of(number) for number in range(_LAST)}

    def test_every_call_of_the_list_gets_its_answer(self, machine: str, rung_letter: str) -> None:
        answers = self.answers(machine, rung_letter)
        column = RUNGS.index(rung_letter)

        def wrong(call: Call) -> bool:
            number = call.number(machine)
            return number is not None and answers[number] != meant(call.answers[column])

        assert [call.name for call in (*REFUSED, *ALLOWED) if wrong(call)] == []

    def test_no_call_outside_the_list_is_refused(self, machine: str, rung_letter: str) -> None:
        listed = {call.number(machine) for call in REFUSED} | {_SOCKET[machine]}
        answers = self.answers(machine, rung_letter)
        assert [number for number in answers if answers[number] != _ALLOW and number not in listed] == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
class TestFilter:
    def test_ordinary_calls_pass(self, machine: str) -> None:
        assert answer(machine, _READ[machine]) == _ALLOW

    @pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
    def test_clone_may_make_threads_and_processes_but_no_namespace(self, machine: str, flag: int) -> None:
        threads = 0x3D0F00
        assert answer(machine, _CLONE[machine], threads) == _ALLOW
        assert answer(machine, _CLONE[machine], 17) == _ALLOW
        assert answer(machine, _CLONE[machine], flag | 17) == error(errno.EPERM)

    def test_calls_that_can_send_sigcont_are_refused_where_environments_are_stopped(self, machine: str) -> None:
        timer, fcntl = {"x86_64": (222, 72), "aarch64": (107, 25)}[machine]
        assert answer(machine, timer) == answer(machine, fcntl, 3, 10) == _ALLOW
        refused, stopping = error(errno.EPERM), Rules(namespaces=True, stopping=True)
        assert answer(machine, timer, rules=stopping) == answer(machine, fcntl, 3, 10, rules=stopping) == refused
        assert answer(machine, fcntl, 3, 4, rules=stopping) == _ALLOW

    @pytest.mark.parametrize("command", [1024, 1026])
    def test_leases_and_directory_notices_are_refused(self, machine: str, command: int) -> None:
        assert answer(machine, {"x86_64": 72, "aarch64": 25}[machine], 3, command) == error(errno.EPERM)

    def test_cores_cannot_be_kept_from_others_by_a_cookie(self, machine: str) -> None:
        prctl = {"x86_64": 157, "aarch64": 167}[machine]
        assert answer(machine, prctl, 62, 1) == error(errno.EPERM)
        assert answer(machine, prctl, 15) == _ALLOW

    def test_limits_and_priorities_of_others_cannot_be_changed(self, machine: str) -> None:
        limit, priority = {"x86_64": (302, 141), "aarch64": (261, 140)}[machine]
        assert answer(machine, limit, 0) == answer(machine, priority, 0, 0) == _ALLOW
        assert answer(machine, limit, 1) == answer(machine, priority, 0, 1) == error(errno.EPERM)
        assert answer(machine, priority, 2, 0) == error(errno.EPERM)

    @pytest.mark.parametrize("family", [0, 2, 10, 16, 17, 40])
    def test_only_unix_sockets_can_be_made(self, machine: str, family: int) -> None:
        for call in (_SOCKET[machine], _SOCKETPAIR[machine]):
            assert answer(machine, call, 1, 1) == _ALLOW
            assert answer(machine, call, family, 1) == error(errno.EAFNOSUPPORT)

    @pytest.mark.parametrize("family", [0, 10, 16, 17, 38, 40])
    def test_an_environment_with_a_listener_has_tcp_over_ipv4_beside_unix_sockets(
        self, machine: str, family: int
    ) -> None:
        rules, socket = Rules(namespaces=True, loopback=True), _SOCKET[machine]
        for flags in (0, 0o2000000, 0o4000):
            for protocol in (0, 6):
                assert answer(machine, socket, 2, 1 | flags, protocol, rules=rules) == _ALLOW
            for protocol in (1, 17, 132, 255, 262):  # SCTP, MPTCP and others
                assert answer(machine, socket, 2, 1 | flags, protocol, rules=rules) == error(errno.EPROTONOSUPPORT)
            for kind in (2, 3, 4, 5, 10):
                assert answer(machine, socket, 2, kind | flags, 0, rules=rules) == error(errno.EPROTONOSUPPORT)
            assert answer(machine, socket, family, 1 | flags, rules=rules) == error(errno.EAFNOSUPPORT)
            for kind in (1, 2, 5):
                assert answer(machine, socket, 1, kind | flags, rules=rules) == _ALLOW
        for call in (2, family):
            assert answer(machine, _SOCKETPAIR[machine], call, 1, rules=rules) == error(errno.EAFNOSUPPORT)
        assert answer(machine, _SOCKETPAIR[machine], 1, 1, rules=rules) == _ALLOW

    def test_such_an_environment_has_no_protocols_above_tcp_in_the_kernel(self, machine: str) -> None:
        rules, setsockopt = Rules(namespaces=True, loopback=True), {"x86_64": 54, "aarch64": 208}[machine]
        assert answer(machine, setsockopt, 3, 6, 31, rules=rules) == error(errno.ENOPROTOOPT)
        assert answer(machine, setsockopt, 3, 6, 1, rules=rules) == _ALLOW
        assert answer(machine, setsockopt, 3, 6, 31) == _ALLOW

    @pytest.mark.parametrize("rung_letter", ["G", "N"])
    def test_such_a_filter_differs_in_nothing_else(self, machine: str, rung_letter: str) -> None:
        rules = RULES[rung_letter]
        other = replace(rules, loopback=True)
        steps, others = (list(struct.iter_unpack("=HBBI", seccomp.assemble(machine, one))) for one in (rules, other))
        for number in range(_LAST):
            for first in (0, 1, 2, 17, 0x10000000):
                data = struct.pack("=IIQ6Q", number, _ARCH[machine], 0, first, 1, 0, 0, 0, 0)
                if (number, first) != (_SOCKET[machine], 2):
                    assert walk(steps, data) == walk(others, data), (number, first)

    def test_without_namespaces_there_are_only_pairs_that_stay_pairs(self, machine: str) -> None:
        rules = RULES["L"]
        assert answer(machine, _SOCKET[machine], 1, 1, rules=rules) == error(errno.EAFNOSUPPORT)
        for flags in (0, 0o2000000, 0o4000):
            for kind in (2, 3):  # datagrams, also by their other name
                refused = answer(machine, _SOCKETPAIR[machine], 1, kind | flags, rules=rules)
                assert refused == error(errno.EPROTONOSUPPORT)
            for kind in (1, 5):
                assert answer(machine, _SOCKETPAIR[machine], 1, kind | flags, rules=rules) == _ALLOW

    def test_input_cannot_be_pushed_into_a_terminal(self, machine: str) -> None:
        assert answer(machine, _IOCTL[machine], 0, 0x5412) == error(errno.EPERM)
        assert answer(machine, _IOCTL[machine], 0, 0x541C) == error(errno.EPERM)
        assert answer(machine, _IOCTL[machine], 0, 0x5401) == _ALLOW

    @pytest.mark.parametrize("request_", [0x40086602, 0x401C5820, 0x40087602, 0x40806685])
    def test_flags_of_the_managers_files_cannot_be_set(self, machine: str, request_: int) -> None:
        assert answer(machine, _IOCTL[machine], 3, request_, rules=RULES["L"]) == error(errno.ENOTTY)
        assert answer(machine, _IOCTL[machine], 3, 0x5413, rules=RULES["L"]) == _ALLOW

    def test_another_architecture_is_killed(self, machine: str) -> None:
        assert answer(machine, _READ[machine], arch=0x40000003) == _KILL


def test_x32_calls_are_killed() -> None:
    assert answer("x86_64", 0x40000000) == _KILL
