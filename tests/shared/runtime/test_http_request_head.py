"""Heads of requests: nothing in an address, a method or a header becomes a line of its own."""

from __future__ import annotations

import pytest

from shared.runtime.http_request_head import InvalidRequest, Origin, request_head, split_address
from shared.runtime.streamed_answer import Header

ORIGIN = Origin("h", 80, False, b"h")


@pytest.mark.parametrize(
    ("url", "host", "port", "written", "target"),
    [
        ("http://a.b", "a.b", 80, b"a.b", "/"),
        ("HTTP://A.b:8000/x/y?z=%2F&q", "a.b", 8000, b"a.b:8000", "/x/y?z=%2F&q"),
        ("https://a.b:443/x#y", "a.b", 443, b"a.b", "/x"),
        ("http://[::1]:80?x", "::1", 80, b"[::1]", "/?x"),
        ("http://bücher.example/", "xn--bcher-kva.example", 80, b"xn--bcher-kva.example", "/"),
    ],
)
def test_an_address_is_a_server_and_a_target(url: str, host: str, port: int, written: bytes, target: str) -> None:
    origin, found = split_address(url)
    assert (origin.host, origin.port, origin.written, found) == (host, port, written, target)
    assert origin.is_secure is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "", "/x", "a.b/x", "ftp://a.b/x", "http://", "http:///x", "http://a\\b:1/x", "http://a:1v1/x", "http://a:99999/",
        "http://a/x y", "http://a/x\r\nb: c", "http://a/\u00e4", "http://a/\0", "http://a\r\nb: c/x", "http://[::1/x",
    ],
)  # fmt: skip
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest):
        _written(url)


def _written(url: str) -> bytes:
    origin, target = split_address(url)
    return request_head("GET", target, origin, [], 0, closes=False, key=b"")


@pytest.mark.parametrize(
    "header", [(b"a", b"b\r\nc: d"), (b"a", b"b\nc: d"), (b"a", b"b\rc"), (b"a", b"b\0"), (b"a\r\nb", b"c")]
)
def test_a_header_is_one_line(header: Header) -> None:
    with pytest.raises(InvalidRequest):
        request_head("GET", "/", ORIGIN, [header], 0, closes=False, key=b"")


@pytest.mark.parametrize("method", ["", "GET /x", "GET\r\nhost: b", "G\u00c4T"])
def test_a_method_is_one_word(method: str) -> None:
    with pytest.raises(InvalidRequest):
        request_head(method, "/", ORIGIN, [], 0, closes=False, key=b"")


def test_a_request_without_authorization_gets_that_of_its_address_or_the_key() -> None:
    with_user, _ = split_address("http://ada:p%40ss@a.b/x")
    assert with_user.written == b"a.b"
    for origin, headers, expected in (
        (ORIGIN, [], b"Bearer key"),
        (with_user, [], b"Basic YWRhOnBAc3M="),
        (with_user, [(b"authorization", b"Bearer own")], b"Bearer own"),
    ):
        head = request_head("GET", "/", origin, headers, 0, closes=True, key=b"Bearer key")
        assert head.count(b"authorization") == 1
        assert b"authorization: " + expected in head.split(b"\r\n")
        assert head.endswith(b"connection: close\r\n\r\n")
    assert b"authorization" not in request_head("GET", "/", ORIGIN, [], 0, closes=False, key=b"")
