"""Zip archives repacked as tar archives: the same files, none outside, of bounded size."""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile

import pytest

from services.proxy.http.swerex import repacking
from services.proxy.http.swerex.forms import Raised, decode_upload
from services.proxy.http.swerex.repacking import to_tar
from shared.runtime.errors import BadRequest


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


MOST = 1 << 20
"""Bytes of the repacked archive, at most."""


def members(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: member for member in opened}


def test_the_same_upload_is_the_same_archive_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = zipped(a=b"x")
    first = to_tar(sent, MOST)
    monkeypatch.setattr("time.time", lambda: 4e9)

    assert to_tar(sent, MOST) == first
    assert members(first)["a"].mtime == 0


def test_names_that_lead_out_lead_nowhere() -> None:
    names = {"../../a": b"1", "/b": b"2", "c/./../d": b"3", "..": b"4"}

    assert sorted(members(to_tar(zipped(**names), MOST))) == ["a", "b", "c/d"]


def test_an_archive_of_too_many_bytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "MOST_BYTES", 1000)

    to_tar(zipped(a=b"\0" * 1000), MOST)
    with pytest.raises(Raised, match="1001 bytes"):
        to_tar(zipped(a=b"\0" * 1000, b=b"\0"), MOST)


def test_nor_are_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "MOST_FILES", 1)

    with pytest.raises(Raised, match="2 files"):
        to_tar(zipped(a=b"", b=b""), MOST)


@pytest.mark.parametrize("cut", [0, 1, 30, 60, -1])
def test_half_an_archive_is_refused(cut: int) -> None:
    with pytest.raises(Raised) as raised:
        to_tar(zipped(a=b"x" * 100)[:cut], MOST)

    assert raised.value.class_path == "zipfile.BadZipFile"


def test_an_archive_with_wrong_sizes_is_refused() -> None:
    archive = bytearray(zipped(a=b"x" * 100))
    at = archive.index(b"PK\x01\x02") + 24  # the size in the directory at its end
    archive[at : at + 4] = (1_000_000).to_bytes(4, "little")

    with pytest.raises(Raised):
        to_tar(bytes(archive), MOST)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_incompressible_files_are_bounded_too(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a", os.urandom(100_000) * 4)

    with pytest.raises(Raised, match="more than 300000 bytes") as raised:
        to_tar(out.getvalue(), 300_000)
    assert raised.value.class_path == "builtins.ValueError"
    assert len(to_tar(out.getvalue(), 500_000)) <= 500_000


def test_the_bound_is_of_the_whole_archive() -> None:
    sent = zipped(**{str(each): b"" for each in range(20)})
    size = len(to_tar(sent, MOST))

    to_tar(sent, size)
    with pytest.raises(Raised, match="more than"):
        to_tar(sent, size - 1)


def test_a_broken_archive_is_raised_as_one_whatever_is_broken() -> None:
    sent = zipped(**{"grün/a.txt": b"hello" * 100, "d/": b"", "b.bin": random.Random(0).randbytes(300)})
    rng = random.Random(1)
    broken = 0
    for _ in range(1000):
        mutated = bytearray(sent)
        for _ in range(rng.choice((1, 1, 2, 4))):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            to_tar(bytes(mutated), MOST)
        except Raised:
            broken += 1
    assert 0 < broken < 1000


def test_a_name_that_is_no_text_and_an_offset_past_the_end_are_a_broken_archive() -> None:
    sent = zipped(grün=b"x")
    far = bytearray(sent)
    at = far.rindex(b"PK\x05\x06") + 16
    far[at : at + 4] = (0x7FFFFFFF).to_bytes(4, "little")

    for broken in (sent.replace("grün".encode(), b"gr\xff\xffn"), bytes(far)):
        with pytest.raises(Raised) as raised:
            to_tar(broken, MOST)
        assert raised.value.class_path == "zipfile.BadZipFile"


# ---- forms ---------------------------------------------------------------------------------------------------------

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="name=x"\r\nContent-Type: text/plain\r\n\r\n'
    b"one\r\n--but\r\n\r\ntwo\r\n--b\r\nContent-Disposition: form-data; name=\"target_path\"\r\n\r\n/a b\r\n"
    b'--b\r\nContent-Disposition: form-data; name="unzip"\r\n\r\nTrue\r\n--b--\r\n'
)  # fmt: skip


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", 'Multipart/Form-Data; charset=x; boundary="b"'])
def test_a_form_is_read_field_by_field(kind: str) -> None:
    assert decode_upload(kind, FORM) == (b"one\r\n--but\r\n\r\ntwo", "/a b", True)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("", FORM),
        ("application/json", FORM),
        ("multipart/form-data", FORM),
        ("multipart/form-data; boundary=c", FORM),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", FORM.replace(b"target_path", b"target")),
        ("multipart/form-data; boundary=b", FORM.replace(b"/a b", b"\xff")),
        ("multipart/form-data; boundary=b", FORM.replace(b"True", b"perhaps")),
    ],
)
def test_a_body_that_is_no_form_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_upload(kind, body)


@pytest.mark.parametrize(
    "head",
    [
        b"content-disposition:" * 6000,
        b"content-disposition:" + b';name="' * 10_000,
        b"content-disposition: form-data" + b"; " * 50_000,
        b"content-disposition: form-data;" + b" " * 100_000,
    ],
)
def test_a_long_head_is_refused_unread(head: bytes) -> None:
    with pytest.raises(BadRequest, match="head of a part"):
        decode_upload("multipart/form-data; boundary=b", b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--\r\n")


def test_a_form_of_many_fields_is_refused() -> None:
    with pytest.raises(BadRequest, match="more than"):
        decode_upload("multipart/form-data; boundary=b", b"--b\r\n\r\n\r\n" * 1000 + FORM)


def test_a_field_is_named_by_its_own_line_alone() -> None:
    odd = FORM.replace(b"Content-Type: text/plain", b'X-Note: content-disposition: form-data; name="target_path"')

    assert decode_upload("multipart/form-data; boundary=b", odd)[1:] == ("/a b", True)
