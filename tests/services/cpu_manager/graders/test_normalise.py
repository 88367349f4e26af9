from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.graders.normalise import Mode, normal_form


@pytest.mark.parametrize(
    ("mode", "text", "form"),
    [
        ("exact", " A b", " A b"),
        ("casefold", "  Große\n Straße ", "grosse strasse"),
        ("squad", "The  Eiffel-Tower, an icon!", "eiffeltower icon"),
        ("number", "so it costs $1,234.50.", "2469/2"),
        ("number", "5 apples, then 7.0 pears", "7"),
        ("number", "-3/4", "-3/4"),
        ("number", "\u22122", "-2"),
        ("number", "1e3", "1000"),
        ("number", ".5", "1/2"),
        ("number", "25%", "25"),
        ("number", "1/0", "1/0"),
        ("number", "none", None),
        ("choice", "The answer is (B).", "B"),
        ("choice", "I think a cat ... Answer: **c**", "C"),
        ("choice", r"so \boxed{D}", "D"),
        ("choice", "B", "B"),
        ("choice", "b", "B"),
        ("choice", "A or B? I say B because C is a lie, Answer: A", "A"),
        ("choice", "Don't know", None),
        ("choice", "", None),
    ],
)
def test_normal_forms(mode: Mode, text: str, form: str | None) -> None:
    assert normal_form(text, mode) == form


@given(st.text(), st.sampled_from(["exact", "casefold", "squad", "number", "choice"]))
def test_every_text_has_a_normal_form_or_none(text: str, mode: Mode) -> None:
    form = normal_form(text, mode)
    assert form is None or isinstance(form, str)


@given(st.text(), st.sampled_from(["casefold", "squad"]))
def test_blanks_around_a_text_change_nothing(text: str, mode: Mode) -> None:
    assert normal_form(f" \n{text}\t", mode) == normal_form(text, mode)


@pytest.mark.parametrize("mode", ["number", "choice", "squad", "casefold"])
def test_a_megabyte_has_a_normal_form(mode: Mode) -> None:
    for text in ("1" * 1_000_000, "1," * 500_000, "a " * 500_000, "answer is " * 100_000, "(" * 1_000_000):
        normal_form(text, mode)
