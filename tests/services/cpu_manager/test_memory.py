"""Memory for environments: usable memory less the reserves."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cpu_manager.memory import MIB, lendable_mb, usable_bytes

GIB = 1 << 30


def machine(root: Path, own: str, limits: dict[str, str]) -> Path:
    """A tree as the kernel shows it: 16 GiB of memory, this process's group, and its limits."""
    files = {
        "proc/meminfo": f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": own,
        **limits,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1, V2 = "4:memory:/pods/mine\n3:cpuset:/\n", "0::/pods/mine\n"
NO_V1 = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("own", "limits", "usable"),
    [
        (V1, {}, 16 * GIB),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": NO_V1}, 16 * GIB),
        (V1, {"sys/fs/cgroup/memory/pods/mine/memory.limit_in_bytes": f"{4 * GIB}"}, 4 * GIB),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}"}, 3 * GIB),
        (V2, {"sys/fs/cgroup/pods/mine/memory.max": "max\n"}, 16 * GIB),
        (V2, {"sys/fs/cgroup/pods/mine/memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        (
            V2,
            {"sys/fs/cgroup/pods/memory.max": f"{2 * GIB}\n", "sys/fs/cgroup/pods/mine/memory.max": "max\n"},
            2 * GIB,
        ),
    ],
)
def test_usable_is_the_tightest_limit_above_the_process(
    tmp_path: Path, own: str, limits: dict[str, str], usable: int
) -> None:
    assert usable_bytes(machine(tmp_path, own, limits)) == usable


def test_a_reserve_is_kept_back_for_the_rest(tmp_path: Path) -> None:
    root = machine(tmp_path, V2, {})

    assert lendable_mb(0, 16, root) == 16 * 1024 - 1024 - 16 * 128
    assert lendable_mb(0, 256, root) == 8 * 1024, "never more than half"
    assert lendable_mb(777, 256, root) == 777, "a setting is used unchanged"


def test_this_machine_has_some() -> None:
    assert usable_bytes() > 64 * MIB
