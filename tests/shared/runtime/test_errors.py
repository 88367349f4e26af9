"""An error is a problem document on one side and the same error on the other."""

from __future__ import annotations

import pytest

from shared.runtime.errors import (
    PROBLEM_TYPE,
    PROBLEMS,
    BadGateway,
    BadRequest,
    Conflict,
    DeadlineMissed,
    Fenced,
    Forbidden,
    LeaseExpired,
    MalformedRequest,
    NotFound,
    NotResident,
    Overloaded,
    QuotaNever,
    QuotaTaken,
    TooLarge,
    TreadleError,
    Unauthorized,
    Unavailable,
    from_problem,
)

EXAMPLES: list[TreadleError] = [
    TreadleError(),
    BadRequest(what="no", line=3),
    BadRequest(what="no"),
    MalformedRequest(what="two Host headers"),
    Unauthorized(what="no key"),
    Forbidden(what="a foreign Origin"),
    NotFound(kind="task", name="t", hint="declare it"),
    NotFound(kind="task", name="t"),
    Conflict(what="twice"),
    QuotaNever(what="no such quota"),
    QuotaTaken(what="taken", retry_after_s=2.5),
    QuotaTaken(what="taken"),
    LeaseExpired(what="late"),
    Fenced(what="another fence"),
    Overloaded(what="full", retry_after_s=2.5),
    TooLarge(limit_bytes=8),
    Unavailable(what="away"),
    NotResident(what="late", retry_after_s=2.5, answer={"id": "a", "mask": True}),
    BadGateway(what="broken off"),
    DeadlineMissed(what="late", queue_s=1.5),
]


def test_every_kind_of_error_has_an_example_here() -> None:
    assert {type(error) for error in EXAMPLES} == set(PROBLEMS.values())


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_a_client_rebuilds_the_same_error_from_its_problem(error: TreadleError) -> None:
    rebuilt = from_problem(error.problem())

    assert type(rebuilt) is type(error)
    assert vars(rebuilt) == vars(error)
    assert str(rebuilt) == str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_a_problem_names_its_type_and_detail(error: TreadleError) -> None:
    problem = error.problem()

    assert problem["type"] == PROBLEM_TYPE + error.slug
    assert (problem["title"], problem["status"], problem["detail"]) == (error.title, error.status, str(error))
    assert None not in problem.values()


def test_retry_after_is_in_whole_seconds_and_at_least_one() -> None:
    assert Overloaded(what="full", retry_after_s=2.4).headers() == {"retry-after": "2"}
    assert Unavailable(what="away", retry_after_s=0.1).headers() == {"retry-after": "1"}


def test_final_errors_have_no_retry_after() -> None:
    assert Conflict(what="twice").headers() == {}


@pytest.mark.parametrize("document", [{}, {"type": "about:blank"}, {"type": PROBLEM_TYPE + "from-the-future", "x": 1}])
def test_a_problem_of_an_unknown_kind_is_a_plain_error(document: dict[str, object]) -> None:
    assert type(from_problem(document)) is TreadleError


def test_errors_are_distinguishable_and_hashable() -> None:
    assert len({BadRequest(what="no"), BadRequest(what="no")}) == 2
