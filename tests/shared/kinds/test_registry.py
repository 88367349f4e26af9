"""Declarations of services are found, and nothing else of the services is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import services
from shared.kinds import registry
from shared.kinds.registry import Kinds, UnknownKind, all_kinds, declaring_modules
from shared.kinds.spec import KindSpec, Params, RuntimeSpec
from shared.kinds.staging import StageForm
from shared.messages.environments import EnvironmentSpec
from shared.policy.resources.resource import ResourceSpec

NEW = '''
"""Kinds of a service that the test adds."""
from shared.kinds.spec import KindSpec, Params

class Echo(Params, frozen=True, kw_only=True):
    """Says it again."""
    text: str

KINDS = (KindSpec("echo", Echo, "{service}", {{"voices": 1}}, ("voices",), repeatable=False),)
'''


def spec(name: str, service: str = "one", *, environment: bool = False) -> KindSpec:
    return KindSpec(name, Params, service, {"voices": 1}, ("voices",), environment=environment)


def test_the_kinds_of_this_distribution() -> None:
    kinds = all_kinds()

    assert declaring_modules() == [
        "services.cpu_manager.kinds",
        "services.gpu_manager.kinds",
        "services.quota_manager.kinds",
    ]
    assert list(kinds.plain) == [
        "noop", "sleep", "code.run", "code.asserts", "code.stdio", "math.verify", "answer.match", "python.function",
        "cuda.compile", "model.judge", "model.score", "model.logprob", "model.embed", "cuda.kernel", "http",
        "search.retrieve",
    ]  # fmt: skip
    assert list(kinds.in_environments) == [
        "env.exec", "env.bash", "env.read", "env.write", "env.upload", "env.download", "env.list", "env.close_session",
    ]  # fmt: skip
    assert {name for name, each in kinds.in_environments.items() if each.repeatable} == {
        "env.read", "env.download", "env.list",
    }  # fmt: skip
    assert all(each.repeatable for each in kinds.plain.values())
    assert {name: dict(each.units) for name, each in kinds.plain.items() if each.requirement is None} == {
        "noop": {"slots": 1},
        "sleep": {"slots": 1},
        "http": {"calls": 1},
        "search.retrieve": {"calls": 1},
    }
    assert [(each.name, each.kind, each.images) for each in kinds.runtimes] == [
        ("local", "runtime.local", False),
        ("docker", "runtime.docker", True),
    ]
    assert kinds.held == {"memory_mb", "starts"}


def test_work_of_a_trajectory_waits_for_cores_and_its_environment_holds_no_gpus() -> None:
    """Model calls, and so pools of GPUs, are no part of a trajectory."""
    kinds = all_kinds()

    for one in kinds.in_environments.values():
        for units in ({"gpus": 1, "cores": 1}, {"cores": 1}, one.units):
            assert StageForm.of(one, units).pool == "cores@default"
        assert one.service_of({"service": "judge"}) == ""
        with pytest.raises(ValueError, match=f"{one.name} needs a core"):
            StageForm.of(one, {"gpus": 1}).check_units({})
    assert all("gpus" not in each.holds for each in kinds.runtimes)


NO_KINDS = ("proxy", "scaling_planner", "engine_proxy", "trajectory_router")
"""Services whose packages are looked at, because they may have declarations."""


def test_loading_the_declarations_loads_nothing_else_of_a_service() -> None:
    code = (
        "import sys; from shared.kinds.registry import all_kinds; all_kinds(); "
        "print(sorted(n for n in sys.modules if n.startswith('services')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.strip().strip("[]").replace("'", "").split(", "))

    assert loaded - {f"services.{name}" for name in NO_KINDS} == {
        "services",
        "services.cpu_manager",
        "services.cpu_manager.kinds",
        "services.gpu_manager",
        "services.gpu_manager.kinds",
        "services.quota_manager",
        "services.quota_manager.kinds",
    }


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a package `services.echo_manager` that is there for one test."""
    folder = tmp_path / "echo_manager"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.setattr(services, "__path__", [*services.__path__, str(tmp_path)])
    all_kinds.cache_clear()
    yield folder
    all_kinds.cache_clear()
    for name in ("services.echo_manager", "services.echo_manager.kinds"):
        sys.modules.pop(name, None)


def test_a_package_contributes_by_its_module_of_declarations(added: Path) -> None:
    assert "echo" not in all_kinds().plain
    all_kinds.cache_clear()
    (added / "kinds.py").write_text(NEW.format(service="echo_manager"))

    kinds = all_kinds()

    assert "echo" in kinds.plain
    assert (kinds.kind("echo").service, kinds.kind("echo").fields) == ("echo_manager", ("text",))
    with pytest.raises(
        UnknownKind, match=r"unknown kind 'dance'; there are noop, .*, echo, model.judge, .*, http, search.retrieve"
    ):
        kinds.kind("dance")


def test_a_kind_of_another_service_is_an_error(added: Path) -> None:
    (added / "kinds.py").write_text(NEW.format(service="cpu_manager"))

    with pytest.raises(ValueError, match=r"services.echo_manager.kinds declares the kind 'echo' of another service"):
        all_kinds()


def test_two_services_cannot_declare_one_kind() -> None:
    with pytest.raises(ValueError, match="one and two both declare the kind 'a'"):
        Kinds.of([spec("a", "one"), spec("a", "two")])


def test_two_services_cannot_declare_one_resource(added: Path) -> None:
    source = "from shared.policy.resources.resource import ResourceSpec\n"
    (added / "kinds.py").write_text(source + 'KINDS = ()\nRESOURCES = {"memory_mb": ResourceSpec("action")}\n')

    with pytest.raises(ValueError, match="two services declare the resource 'memory_mb'"):
        all_kinds()


@pytest.mark.parametrize(("images", "of"), [(True, "container images"), (False, "the image 'local'")])
def test_two_runtimes_cannot_create_environments_of_one_image(images: bool, of: str) -> None:
    runtimes = [RuntimeSpec("first", {}, images=images), RuntimeSpec("second", {}, images=images)]

    with pytest.raises(ValueError, match=f"the runtimes 'first' and 'second' both create environments of {of}"):
        Kinds.of([], runtimes)


def test_kinds_for_environments_are_no_others() -> None:
    kinds = Kinds.of([spec("a"), spec("b", environment=True)])

    assert (kinds.kind("a").name, kinds.environment_kind("b").name) == ("a", "b")
    with pytest.raises(UnknownKind, match=r"unknown kind 'b'; there are a$"):
        kinds.kind("b")
    with pytest.raises(UnknownKind, match=r"unknown kind 'a'; in a trajectory there are b$"):
        kinds.environment_kind("a")


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(UnknownKind) as error:
        Kinds.of([]).kind("x" * 10_000)
    assert len(str(error.value)) < 500


RESOURCES = {"disk": ResourceSpec("environment"), "turns": ResourceSpec("creation"), "gpus": ResourceSpec()}
RUNTIMES = (
    RuntimeSpec("inside", {"disk": "disk_mb", "turns": 2}),
    RuntimeSpec("remote", {"disk": "memory_mb"}, images=True),
)


@pytest.mark.parametrize(
    ("image", "held", "lasting"),
    [("local", {"disk": 7, "turns": 2}, {"disk": 7}), ("python:3.12", {"disk": 99}, {"disk": 99})],
)
def test_an_environment_holds_what_its_runtime_declares(
    image: str, held: dict[str, int], lasting: dict[str, int]
) -> None:
    kinds = Kinds.of([], RUNTIMES, [RESOURCES])
    environment = EnvironmentSpec(image=image, memory_mb=99, disk_mb=7)

    assert (kinds.held_units(environment), kinds.lasting_units(environment)) == (held, lasting)
    assert kinds.held == {"disk", "turns"}


def test_an_image_without_a_runtime_is_an_error() -> None:
    assert [Kinds.of([], RUNTIMES[:1]).can_create(image) for image in ("local", "python:3.12")] == [True, False]
    with pytest.raises(LookupError, match=r"no service declares a runtime for the image 'python:3.12'"):
        Kinds.of([], RUNTIMES[:1]).runtime("python:3.12")


def test_the_registry_is_loaded_once() -> None:
    assert registry.all_kinds() is all_kinds()
