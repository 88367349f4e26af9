"""URLs are read in one way."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from services.quota_manager.urls import InvalidUrl, UrlTarget, read_url, redirected
from tests.services.quota_manager.outgoing.tricks import SPELLINGS


@pytest.mark.parametrize("url", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_a_spelling_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        read_url(url.replace("PORT", "8080"))


def test_a_user_name_is_refused_with_an_instruction() -> None:
    with pytest.raises(InvalidUrl, match="send credentials as a header with a secret"):
        read_url("https://user:password@example.com/")


@pytest.mark.parametrize(
    ("text", "query", "url"),
    [
        ("http://example.com", {}, "http://example.com/"),
        ("HTTPS://Example.COM:443/a?b=c#d", {}, "https://example.com/a?b=c"),
        ("http://example.com./a", {}, "http://example.com/a"),
        ("http://example.com:8080/é?ü=ä", {}, "http://example.com:8080/%C3%A9?%C3%BC=%C3%A4"),
        ("http://[2606:4700:0:0::1]/", {}, "http://[2606:4700::1]/"),
        ("http://8.8.8.8:00080/a%2Fb", {}, "http://8.8.8.8/a%2Fb"),
        ("http://xn--bcher-kva.de/?a=1", {"q": "a b&c/d?é"}, "http://xn--bcher-kva.de/?a=1&q=a%20b%26c%2Fd%3F%C3%A9"),
        ("http://a.b/{x}|<y>", {}, "http://a.b/%7Bx%7D%7C%3Cy%3E"),
        ("http://a_b.internal/a//b/../c", {}, "http://a_b.internal/a//b/../c"),
    ],
)  # fmt: skip
def test_a_url_is_read_and_written(text: str, query: dict[str, str], url: str) -> None:
    assert read_url(text, query).url == url


@given(
    st.from_regex(r"https?://([^/?#]|[a-z0-9.:@\[\]%\\-]){1,20}[/?#]?.{0,20}", fullmatch=True)
    | st.from_regex(r"(https?:|)/{0,3}[a-z0-9.:@\[\]\\-]{0,30}(/.*)?", fullmatch=True)
)
def test_other_parsers_read_the_same_host_and_port(text: str) -> None:
    with contextlib.suppress(InvalidUrl):
        target = read_url(text)
        other = URL(target.url, encoded=True)
        assert (other.scheme, other.raw_host, other.port) == target.origin
        assert (other.raw_user, other.raw_password, other.raw_fragment) == (None, None, "")
        assert str(other) == target.url
        assert target.url.isascii()
        assert "\n" not in target.url
        split = urlsplit(target.url)
        assert (split.hostname, split.port or {"http": 80, "https": 443}[split.scheme]) == (target.host, target.port)


def test_a_target_shows_no_query() -> None:
    target = read_url("http://example.com/a?key=hidden", {"also": "hidden"})
    assert "hidden" not in repr(target) + target.shown


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "http://example.com/b"),
        ("c?d=e", "http://example.com/a/c?d=e"),
        ("//other.example/x", "http://other.example/x"),
        ("?q=1", "http://example.com/a/b?q=1"),
        ("https://other.example:8443", "https://other.example:8443/"),
    ],
)
def test_a_redirect_is_joined(location: str, url: str) -> None:
    assert redirected(read_url("http://example.com/a/b?z=1"), location).url == url


@pytest.mark.parametrize(
    "location",
    ["\thttp://a.b/", "ht\ntp://a.b/", "/a b", "/\\a.b", "//a@b/", "file:///etc/passwd", "http://[::1", "//0x7f.1/",
     "/" * 9000],
)  # fmt: skip
def test_a_redirect_to_no_valid_url_is_refused(location: str) -> None:
    with pytest.raises(InvalidUrl):
        redirected(read_url("http://example.com/a/b"), location)


@pytest.mark.parametrize(
    ("host", "expected"), [("8.8.8.8", True), ("2606::1", True), ("a.b", False), ("8.a", False), ("8", True)]
)
def test_addresses_are_told_from_names(host: str, expected: bool) -> None:
    assert UrlTarget("http", host, 80, "/", "").is_address is expected
