"""Reasons of actions whose model service no node can serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.policy.dispatch.backlog import stuck_actions, stuck_text, survey
from shared.policy.dispatch.service_reasons import MOST_NAMED, why_unserved
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import NodeLost, TickPassed
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.formulation import AnswerAction
from tests.shared.policy.dispatch.test_model_services import Cluster, served, use

WAITS = "; it waits for a node that can until its budget ends"
PROBE = "quarantined: a wrong canary; the next probe is at 2026-11-30T13:00:00Z"


@dataclass
class Mesh(Cluster):
    """A cluster of which a node reports quarantined engines and faulty GPUs."""

    quarantined: Mapping[str, str] = field(default_factory=dict)
    bad: tuple[int, ...] = ()

    def report(self, name: str, services: dict[str, ServedModel] | None = None) -> ServicesReported:
        return replace(super().report(name, services), quarantined=self.quarantined, bad=self.bad)

    def stuck(self) -> list[str]:
        cluster = self.dispatcher.cluster
        return [stuck_text(cluster, action) for action in stuck_actions(cluster)]


def mesh(gpus: int = 2, **services: ServedModel) -> Mesh:
    found = Mesh(gpus=gpus, services=services)
    found.join()
    return found


def test_a_misspelt_service_is_named_with_the_declared_ones() -> None:
    one = mesh(b=served(), a=served(2))
    assert one.submit("x", use("judge-zz")) == []
    reason = "no node of class 'cpu' has a model service 'judge-zz'; declared are a, b"
    assert one.stuck() == [reason + WAITS]
    (pool,) = survey(one.dispatcher.cluster).pools
    assert [(stuck.waiting, stuck.reason) for stuck in pool.lacks] == [(1, reason)], "also in /v1/pools"


def test_the_named_services_are_bounded() -> None:
    one = mesh(2, **{f"s{number:02}": served() for number in range(MOST_NAMED + 3)})
    one.submit("x", use("judge-zz"))
    (text,) = one.stuck()
    assert text.endswith(f"s06, s07 and 3 more{WAITS}")


def test_the_answer_after_the_deadline_has_the_reason() -> None:
    one = mesh(a=served())
    one.submit("x", use("judge-zz"))
    (answer,) = [end for end in one.dispatcher.handle(2e6, TickPassed()) if isinstance(end, AnswerAction)]
    assert (answer.ended, answer.reason) == (
        "expired",
        "no node of class 'cpu' has a model service 'judge-zz'; declared are a",
    )


def test_a_service_whose_engines_are_quarantined_has_their_reason_and_is_not_refused() -> None:
    one = mesh(2, a=served(), b=served())
    one.quarantined = {"a": PROBE}
    one.handle(one.report("a", {"a": replace(served(), unusable=frozenset({Chunk(0, 1), Chunk(1, 1)})), "b": served()}))
    assert one.submit("x", use("a")) == []
    assert one.stuck() == [f"a cannot use the model service 'a': {PROBE}{WAITS}"]
    one.quarantined = {}
    assert [grant.action for grant in one.handle(one.report("a"))] == ["x"]


def test_a_service_of_faulty_gpus_has_that_reason() -> None:
    one = mesh(1, a=served())
    one.bad = (0,)
    one.handle(one.report("a"))
    one.submit("x", use("a"))
    assert one.stuck() == [f"each chunk of gpus that the model service 'a' could use has a faulty one{WAITS}"]


def wrong_units(service: ServedModel, units: int = 1) -> str:
    one = mesh(4, a=service)
    one.submit("x", use("a", units))
    (text,) = one.stuck()
    return text


def test_units_that_no_engine_has_are_named_with_those_to_write() -> None:
    hint = "no engine of the model service 'a' has gpus=1; write \"units\": "
    assert wrong_units(served(2)) == f'{hint}{{"gpus": 2}}{WAITS}'
    assert wrong_units(served(2, 4, 8)) == f'{hint}{{"gpus": 2}} or 4{WAITS}', "the node has 4"
    by_degree = ServedModel((1, 2), awake_gb_by={1: 100.0, 2: 50.0})
    unusable = frozenset(Chunk(number, 1) for number in range(4))
    assert wrong_units(replace(by_degree, unusable=unusable)) == f'{hint}{{"gpus": 2}}{WAITS}', "a GPU has 80 GB"


def test_the_degree_is_right_as_soon_as_one_node_has_it() -> None:
    one = Mesh(("a", "b"), gpus=2, services={"a": served(2)})
    one.join()
    one.handle(one.report("b", {"a": served(1)}))
    assert [grant.node for grant in one.submit("x", use("a"))] == ["b"]


def test_the_reason_follows_the_reports_and_is_computed_once_between_them() -> None:
    one = mesh(a=served())
    for number in range(3):
        one.submit(f"x{number}", use("z"))
    cluster = one.dispatcher.cluster
    assert len(set(one.stuck())) == len(cluster.nodes.unserved) == 1
    one.handle(one.report("a", {"a": served(), "y": served()}))
    assert cluster.nodes.unserved == {}
    assert one.stuck()[0] == f"no node of class 'cpu' has a model service 'z'; declared are a, y{WAITS}"
    one.handle(NodeLost("a", "it has stopped"))
    (action, *_) = stuck_actions(cluster)
    assert why_unserved(cluster, action) == "", "no node offers its kind"
