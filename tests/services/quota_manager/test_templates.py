"""Values of a model in templates: none changes the host, the path's structure or the JSON's."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.quota_manager.templates import InvalidTemplate, fill_json, fill_query, fill_url

HOSTILE = [
    "a/b", "../admin", "/", "//evil.example", "?x=1", "#end", "&key=1", "a b", "%2e%2e", "%2F", "\r\nHost: evil",
    "@evil.example", "é", "\\", ":80", "{name}", "a\u0000b", "..;", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_value_stays_in_its_segment(value: str) -> None:
    parts = urlsplit(fill_url("https://api.example/a/{name}/c", {"name": value}))

    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("https", "api.example", "", "")
    segments = parts.path.split("/")
    assert (len(segments), segments[1], segments[3]) == (4, "a", "c")


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_value_stays_in_its_parameter(value: str) -> None:
    parts = urlsplit(fill_url("https://api.example/a?q={name}&key=k", {"name": value}))

    assert (parts.netloc, parts.path, parts.fragment) == ("api.example", "/a", "")
    expected = value.encode("utf-8", "replace").decode()
    assert parse_qsl(parts.query, keep_blank_values=True) == [("q", expected), ("key", "k")]


@given(st.text())
def test_no_value_changes_the_number_of_segments_or_the_host(value: str) -> None:
    try:
        parts = urlsplit(fill_url("http://api.example:81/{name}/end", {"name": value}))
    except InvalidTemplate:
        assert value in ("", ".", "..")
    else:
        assert (parts.netloc, parts.path.count("/"), parts.path.endswith("/end")) == ("api.example:81", 2, True)


@pytest.mark.parametrize(
    ("template", "values", "message"),
    [
        ("https://{name}/a", {"name": "evil"}, "a host without places"),
        ("https://api.{name}.example/a", {"name": "evil"}, "a host without places"),
        ("https://api.example:{name}/a", {"name": "81"}, "a host without places"),
        ("{name}://api.example/a", {"name": "http"}, "write http:// or https://"),
        ("ftp://api.example/a", {}, "write http:// or https://"),
        ("api.example/a", {}, "write http:// or https://"),
        ("https://api.example/{name}", {}, "the place {name} has no entry in `values`"),
        ("https://api.example/{name}", {"name": ""}, "must not be empty"),
        ("https://api.example/{name}/a", {"name": ".."}, "a segment of the path '.' or '..'"),
        ("https://api.example/{name}", {"name": "."}, "a segment of the path '.' or '..'"),
        ("https://api.example/.{name}/a", {"name": "."}, "a segment of the path '.' or '..'"),
        ("https://api.example/a#{name}", {"name": "b"}, "remove the part from '#' on"),
        ("https://api.example/{name}", {"name": "a" * 40_000}, "characters with its values"),
    ],
    ids=ascii,
)
def test_a_template_that_cannot_be_filled_says_what_to_change(
    template: str, values: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidTemplate) as error:
        fill_url(template, values)
    assert message in str(error.value)


def test_a_value_with_slashes_is_one_segment() -> None:
    assert fill_url("https://a.example/{q}?p={q}", {"q": "x/y z"}) == "https://a.example/x%2Fy%20z?p=x%2Fy%20z"


def test_json_is_filled_inside_its_texts() -> None:
    template = {"messages": [{"content": "Grade {answer}: {other} {}"}], "n": 1, "{answer}": True}

    filled = fill_json(template, {"answer": '"}], "evil": [{'})

    assert filled == {"messages": [{"content": 'Grade "}], "evil": [{: {other} {}'}], "n": 1, "{answer}": True}


def test_a_value_is_not_filled_again() -> None:
    assert fill_json("{a}{b}", {"a": "{b}", "b": "x"}) == "{b}x"


BOMB = "{a}" * 400


def test_a_template_that_repeats_a_long_value_is_rejected_before_it_is_built() -> None:
    values = {"a": "x" * (1 << 20)}
    for what, fill in (
        ("url", lambda: fill_url(f"https://api.example/?q={BOMB}", values)),
        ("query", lambda: fill_query({"q": BOMB}, values)),
        ("json", lambda: fill_json({"text": BOMB}, values)),
        ("json", lambda: fill_json(["{a}"] * 9, values)),
    ):
        with pytest.raises(InvalidTemplate, match=rf"^{what}: it has up to \d+ characters"):
            fill()


def test_a_filled_body_has_up_to_8_mib() -> None:
    values = {"a": "x" * (1 << 20)}
    assert len(fill_json(["{a}"] * 7, values)) == 7
    most = [*["{a}"] * 7, "y" * ((1 << 20) - 21)]
    assert sum(map(len, fill_json(most, values))) == (8 << 20) - 21
    with pytest.raises(InvalidTemplate, match="8388609 characters with its values, and may have 8388608"):
        fill_json([*most, "y"], values)


def test_parameters_of_a_url_have_up_to_32_kib_together() -> None:
    query = {f"p{n}": "x" * 4096 for n in range(8)}
    assert fill_query(query, {}) == query
    with pytest.raises(InvalidTemplate, match=r"^query: it has up to 32769"):
        fill_query({**query, "q": "y"}, {})
