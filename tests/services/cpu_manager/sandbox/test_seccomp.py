"""The filter of either machine, walked by a small interpreter of classic BPF: what it answers to which call."""

import errno
import struct

import pytest

from services.cpu_manager.sandbox.walls import seccomp

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_READ = {"x86_64": 0, "aarch64": 63}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE = {"x86_64": 56, "aarch64": 220}


def answer(
    machine: str, number: int, *arguments: int, arch: int | None = None, namespaces: bool = True, stopping: bool = False
) -> int:
    """Run the filter on one call. Raises IndexError if a jump leaves the program."""
    steps = list(struct.iter_unpack("=HBBI", seccomp.assemble(machine, namespaces=namespaces, stopping=stopping)))
    data = struct.pack("=IIQ6Q", number, _ARCH[machine] if arch is None else arch, 0, *(*arguments, *[0] * 6)[:6])
    position, accumulator = 0, 0
    while True:
        code, when, otherwise, value = steps[position]
        position += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
        position += when if holds else otherwise


def error(number: int) -> int:
    return 0x00050000 | number


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
class TestFilter:
    def test_ordinary_calls_pass(self, machine: str) -> None:
        assert answer(machine, _READ[machine]) == _ALLOW

    @pytest.mark.parametrize("name", sorted(seccomp._REFUSED))
    def test_refused_calls_answer_eperm(self, machine: str, name: str) -> None:
        number = seccomp._REFUSED[name][0 if machine == "x86_64" else 1]
        assert number is None or answer(machine, number) == error(errno.EPERM)

    @pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
    def test_clone_may_make_threads_and_processes_but_no_namespace(self, machine: str, flag: int) -> None:
        threads = 0x3D0F00
        assert answer(machine, _CLONE[machine], threads) == _ALLOW
        assert answer(machine, _CLONE[machine], 17) == _ALLOW
        assert answer(machine, _CLONE[machine], flag | 17) == error(errno.EPERM)

    def test_what_could_send_sigcont_by_itself_is_refused_where_environments_are_stopped(self, machine: str) -> None:
        timer, fcntl = {"x86_64": (222, 72), "aarch64": (107, 25)}[machine]
        assert answer(machine, timer) == answer(machine, fcntl, 3, 10) == _ALLOW
        refused = error(errno.EPERM)
        assert answer(machine, timer, stopping=True) == answer(machine, fcntl, 3, 10, stopping=True) == refused
        assert answer(machine, fcntl, 3, 4, stopping=True) == _ALLOW

    def test_clone3_is_absent(self, machine: str) -> None:
        assert answer(machine, 435) == error(errno.ENOSYS)

    @pytest.mark.parametrize("family", [0, 2, 10, 16, 17, 40])
    def test_only_unix_sockets_can_be_made(self, machine: str, family: int) -> None:
        pair = _SOCKET[machine] + (12 if machine == "x86_64" else 1)
        for call in (_SOCKET[machine], pair):
            assert answer(machine, call, 1) == _ALLOW
            assert answer(machine, call, family) == error(errno.EAFNOSUPPORT)

    def test_without_namespaces_there_are_only_socket_pairs(self, machine: str) -> None:
        assert answer(machine, _SOCKET[machine], 1, namespaces=False) == error(errno.EAFNOSUPPORT)

    def test_without_namespaces_there_is_no_system_v_memory(self, machine: str) -> None:
        shmget = 29 if machine == "x86_64" else 194
        assert answer(machine, shmget) == _ALLOW
        assert answer(machine, shmget, namespaces=False) == error(errno.EPERM)

    def test_input_cannot_be_pushed_into_a_terminal(self, machine: str) -> None:
        ioctl = 16 if machine == "x86_64" else 29
        assert answer(machine, ioctl, 0, 0x5412) == error(errno.EPERM)
        assert answer(machine, ioctl, 0, 0x5401) == _ALLOW

    def test_another_architecture_is_killed(self, machine: str) -> None:
        assert answer(machine, _READ[machine], arch=0x40000003) == _KILL


def test_x32_calls_are_killed() -> None:
    assert answer("x86_64", 0x40000000) == _KILL
