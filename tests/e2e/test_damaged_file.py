"""A damaged append-only file: ``treadle up`` explains it, ``treadle repair`` cuts it and keeps a copy."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from treadle.stack.append_only import scan
from treadle.testing.servers import clean_environment, running_valkey, temporary_home

TREADLE = Path(sys.executable).with_name("treadle")
ECHO = "echo=treadle.testing.echo:create_app"


def treadle(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**clean_environment(), "TREADLE_HOME": str(root), "STACK_SERVICES": ECHO}
    return subprocess.run([TREADLE, *arguments], env=environ, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def root() -> Iterator[Path]:
    with temporary_home() as root:
        yield root


def written(root: Path) -> Path:
    """The file of a Valkey that has accepted 100 writes and a transaction."""
    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        for number in range(100):
            client.xadd("actions", {"m": b"\x00\r\n*3" * 10, "i": number})
        with client.pipeline(transaction=True) as pipe:
            pipe.set("a", 1)
            pipe.set("b", 2)
            pipe.execute()
    (file,) = (root / "valkey" / "appendonlydir").glob("*.incr.aof")
    return file


def test_a_damaged_file_is_reported_repaired_and_kept(root: Path) -> None:
    file = written(root)
    sound = file.read_bytes()
    file.write_bytes(sound + b"*2\r\n$3\r\nSE\x00\xffdamage" + sound[-200:])
    failed = treadle(root, "up", "--detach")
    assert failed.returncode == 1
    assert "valkey does not start: exit status 1" in failed.stderr
    assert "Valkey's append-only file is damaged. Run: treadle repair." in failed.stderr

    repaired = treadle(root, "repair")
    assert repaired.returncode == 0, repaired.stderr
    assert f"{file} was damaged at byte {len(sound)} of {len(sound) + 220 - 2}" in repaired.stdout
    assert file.read_bytes() == sound
    copy = file.with_name(f"{file.name}.damaged-1")
    assert copy.read_bytes()[: len(sound)] == sound
    assert f"kept as {copy}" in repaired.stdout

    assert treadle(root, "up", "--detach").returncode == 0
    try:
        refused = treadle(root, "repair")
        assert (refused.returncode, "is up: stop it first" in refused.stderr) == (1, True)
    finally:
        treadle(root, "down")
    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        assert (client.xlen("actions"), client.get("a"), client.get("b")) == (100, b"1", b"2")
    assert "nothing to repair" in treadle(root, "repair").stdout


@pytest.mark.parametrize("cut", [1, 10, 40, 60])
def test_a_transaction_is_kept_whole_or_not_at_all(root: Path, cut: int) -> None:
    file = written(root)
    sound = file.read_bytes()
    begin = sound.index(b"*1\r\n$5\r\nMULTI\r\n")
    file.write_bytes(sound[:-cut] + b"\xff" * 50)
    found = scan(file)
    assert (found.whole, found.size, found.damaged) == (begin, len(sound) - cut + 50, True)


def test_damage_in_the_middle_loses_what_follows(root: Path) -> None:
    file = written(root)
    sound = file.read_bytes()
    middle = sound.index(b"*7\r\n$4\r\nXADD", len(sound) // 2)
    file.write_bytes(sound[:middle] + b"?" + sound[middle + 1 :])
    before = scan(file)
    assert before.whole == middle
    assert 40 < before.commands < 60
    assert treadle(root, "repair").returncode == 0
    with running_valkey(root) as url, redis.Redis.from_url(url) as client:
        assert client.xlen("actions") == before.commands - 1  # SELECT


def test_repair_without_a_file_is_an_error(root: Path) -> None:
    written(root).with_name("appendonly.aof.manifest").unlink()
    refused = treadle(root, "repair")
    assert (refused.returncode, "there is no append-only file" in refused.stderr) == (1, True)
