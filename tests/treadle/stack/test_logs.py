import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from treadle.stack.logs import LONGEST_LINE, LineSplitter, ServiceLogs


def test_the_view_names_the_service_and_the_file_holds_the_bare_line(tmp_path: Path) -> None:
    view = io.StringIO()
    logs = ServiceLogs(tmp_path, limit_bytes=1000, view=view, width=6)
    logs.line("proxy", "batch_opened")
    logs.close()
    assert view.getvalue() == "proxy | batch_opened\n"
    assert (tmp_path / "proxy.log").read_text() == "batch_opened\n"


def test_a_full_file_is_set_aside_once(tmp_path: Path) -> None:
    logs = ServiceLogs(tmp_path, limit_bytes=100)
    for number in range(60):
        logs.line("proxy", f"line {number:04d}")
    logs.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proxy.log", "proxy.log.1"]
    assert (tmp_path / "proxy.log").stat().st_size <= 110
    assert "line 0059" in (tmp_path / "proxy.log").read_text()


def test_the_last_lines_are_remembered(tmp_path: Path) -> None:
    logs = ServiceLogs(tmp_path, limit_bytes=10_000)
    for number in range(100):
        logs.line("proxy", str(number))
    logs.close()
    assert logs.tail("proxy") == [str(number) for number in range(60, 100)]
    assert logs.tail("nobody") == []


@given(st.lists(st.binary(max_size=20)))
def test_however_the_stream_is_cut_the_lines_are_the_same(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()
    expected = b"".join(chunks).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == [line.decode(errors="replace") for line in expected]


def test_an_endless_line_is_cut() -> None:
    splitter = LineSplitter()
    assert [len(line) for line in splitter.feed(b"x" * (2 * LONGEST_LINE + 5))] == [LONGEST_LINE, LONGEST_LINE]
    assert splitter.end() == ["xxxxx"]
