"""Zip archives made tar archives: the same files, nothing outside, nothing without end."""

from __future__ import annotations

import io
import tarfile
import time
import zipfile

import pytest

from services.proxy.swerex import repacking
from services.proxy.swerex.forms import Raised, decode_upload
from services.proxy.swerex.repacking import to_tar
from shared.errors import BadRequest


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def members(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: member for member in opened}


def test_files_are_as_old_as_their_upload() -> None:
    (member,) = members(to_tar(zipped(a=b"x"))).values()

    assert abs(member.mtime - time.time()) < 3600


def test_names_that_lead_out_lead_nowhere() -> None:
    names = {"../../a": b"1", "/b": b"2", "c/./../d": b"3", "..": b"4"}

    assert sorted(members(to_tar(zipped(**names)))) == ["a", "b", "c/d"]


def test_what_unpacks_to_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "MOST_BYTES", 1000)

    to_tar(zipped(a=b"\0" * 1000))
    with pytest.raises(Raised, match="1001 bytes"):
        to_tar(zipped(a=b"\0" * 1000, b=b"\0"))


def test_nor_are_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "MOST_FILES", 1)

    with pytest.raises(Raised, match="2 files"):
        to_tar(zipped(a=b"", b=b""))


@pytest.mark.parametrize("cut", [0, 1, 30, 60, -1])
def test_half_an_archive_is_none(cut: int) -> None:
    with pytest.raises(Raised) as raised:
        to_tar(zipped(a=b"x" * 100)[:cut])

    assert raised.value.class_path == "zipfile.BadZipFile"


def test_an_archive_that_lies_of_its_sizes_is_none() -> None:
    archive = bytearray(zipped(a=b"x" * 100))
    at = archive.index(b"PK\x01\x02") + 24  # the size in the directory at its end
    archive[at : at + 4] = (1_000_000).to_bytes(4, "little")

    with pytest.raises(Raised):
        to_tar(bytes(archive))


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
def test_what_is_no_form_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_upload(kind, body)
