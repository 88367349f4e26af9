"""Actions whose model service has a wrong entry on a node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shared.policy.dispatch.backlog import stuck_actions, stuck_text
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined, NodeLost, RequestsSubmitted
from shared.policy.model.chunks import ServedModel
from shared.policy.model.formulation import AnswerAction, Command
from tests.shared.policy.dispatch.test_model_services import Cluster, served, use
from tests.shared.policy.strategies import request

WHY = "backend: must be one of process, sglang, torch, vllm, not 'tgi'"


@dataclass
class Mesh(Cluster):
    """A cluster in which `problems` are reported by its nodes."""

    problems: dict[str, str] = field(default_factory=lambda: {"typo": WHY})

    def report(self, name: str, services: dict[str, ServedModel] | None = None) -> ServicesReported:
        return replace(super().report(name, services), problems=self.problems)

    def answers(self, name: str, service: str) -> list[Command]:
        """Submit an action. Return its answer."""
        commands = self.dispatcher.handle(
            self.now, RequestsSubmitted((request(name, use(service), at_s=self.now, batch=""),))
        )
        self.dispatcher.check()
        return [one for one in commands if isinstance(one, AnswerAction)]

    def stuck(self) -> list[str]:
        cluster = self.dispatcher.cluster
        return [stuck_text(cluster, action) for action in stuck_actions(cluster)]


def mesh() -> Mesh:
    found = Mesh(services={"good": served()})
    found.join()
    return found


def test_a_new_action_of_a_wrong_entry_is_refused_with_the_reason_and_stops_no_other() -> None:
    one = mesh()
    (answer,) = one.answers("x", "typo")
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason) == ("refused", f"a cannot use the model service 'typo': {WHY}")
    assert [granted.action for granted in one.submit("y", use("good"))] == ["y"]


def test_an_action_of_a_service_that_no_file_names_waits_as_before() -> None:
    one = mesh()
    assert one.answers("x", "nobody") == []
    (text,) = one.stuck()
    assert text == (
        "no node of class 'cpu' has a model service 'nobody'; declared are good; "
        "it waits for a node that can until its budget ends"
    )


def test_accepted_work_waits_for_the_correction_with_the_reason() -> None:
    one = Mesh(services={"good": served(), "typo": served()}, problems={})
    one.join()
    one.submit("first", use("typo"))
    one.submit("queued", use("typo"))
    one.problems = {"typo": WHY}
    one.handle(one.report("a", {"good": served()}))
    one.end("first")
    (text,) = one.stuck()
    assert text == f"a cannot use the model service 'typo': {WHY}; it waits for a node that can until its budget ends"
    one.problems = {}
    assert [granted.action for granted in one.handle(one.report("a"))] == ["queued"]


def test_an_action_goes_to_a_node_whose_entry_is_right() -> None:
    one = Mesh(("a", "b"), services={"good": served()})
    one.join()
    one.problems = {}
    one.handle(one.report("b", {"typo": served()}))
    one.services["typo"] = served()
    assert one.answers("x", "typo") == []
    assert not one.stuck()


def test_nothing_is_refused_while_a_node_has_not_reported_what_it_has() -> None:
    one = Mesh(("a",), services={"good": served()})
    one.join()
    one.dispatcher.handle(one.now, NodeJoined("b", "1", "cpu", {"gpus": 1}, frozenset({"run"})))
    assert one.answers("x", "typo") == []
    one.dispatcher.handle(one.now, ServicesReported("b", "1", "gpus", {"good": served()}, (80.0,)))
    one.dispatcher.handle(one.now, InventoryReported("b", "1", {}))
    assert len(one.answers("y", "typo")) == 1


def test_the_reason_of_a_node_that_has_gone_or_started_again_is_forgotten() -> None:
    one = mesh()
    unusable = one.dispatcher.cluster.nodes.unusable
    one.dispatcher.handle(one.now, NodeJoined("a", "2", "cpu", {"gpus": 1}, frozenset({"run"})))
    assert not unusable.why("typo")
    one.dispatcher.handle(one.now, ServicesReported("a", "2", "gpus", {}, (80.0,), problems={"typo": WHY}))
    assert unusable.why("typo")
    one.dispatcher.handle(one.now, NodeLost("a", "it has stopped"))
    assert not unusable.why("typo")
