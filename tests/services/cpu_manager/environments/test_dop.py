"""Parameters of an action in an environment with the number of granted cores."""

from __future__ import annotations

import subprocess

import pytest

from services.cpu_manager.environments.dop import with_dop
from services.cpu_manager.kinds import EnvBash, EnvExec, EnvRead
from shared.kinds.spec import Params


def output_of(line: str) -> str:
    return subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=True).stdout


def line_of(line: str, cores: int) -> str:
    params = with_dop(EnvBash(line=line), cores)
    assert isinstance(params, EnvBash)
    return params.line


def test_a_command_names_its_cores_in_arguments_and_variables() -> None:
    params = with_dop(EnvExec(argv=["run", "-w{dop}", "{dop}"], env={"JOBS": "{dop}x", "A": "{}"}), 3)

    assert params == EnvExec(argv=["run", "-w3", "3"], env={"TREADLE_DOP": "3", "JOBS": "3x", "A": "{}"})


def test_in_literal_arguments_nothing_is_filled_in() -> None:
    command = EnvExec(argv=["{dop}"], env={"A": "{dop}"}, literal=True)

    assert with_dop(command, 3) == EnvExec(argv=["{dop}"], env={"TREADLE_DOP": "3", "A": "{dop}"}, literal=True)
    line = EnvBash(line="echo '{dop}'", literal=True)
    assert with_dop(line, 1) == line
    wide = with_dop(line, 3)
    assert isinstance(wide, EnvBash)
    assert output_of(wide.line) == "{dop}\n"


def test_a_variable_of_the_trainer_is_kept() -> None:
    assert with_dop(EnvExec(argv=["run"], env={"TREADLE_DOP": "9"}), 3) == EnvExec(
        argv=["run"], env={"TREADLE_DOP": "9"}
    )


@pytest.mark.parametrize("cores", [1, 6])
def test_a_line_names_its_cores(cores: int) -> None:
    assert output_of(line_of("""echo {dop} "{dop}" '{dop}'""", cores)) == f"{cores} {cores} {cores}\n"


def test_a_line_on_one_core_is_what_was_sent() -> None:
    line = "make && pytest -x | tail  # as ever\n"

    assert line_of(line, 1) == line


def test_processes_of_a_wide_line_have_the_number_of_cores_and_the_next_line_does_not() -> None:
    wide = line_of("""bash -c 'echo "$TREADLE_DOP"'""", 4)

    assert output_of(f"{wide}\necho now ${{TREADLE_DOP-none}}") == "4\nnow none\n"


def test_a_wide_line_sees_and_leaves_what_any_line_does() -> None:
    wide = line_of("""echo "$? $it"; it='new one'; cd /; f() { echo "$it"; }; (exit 7)""", 4)

    assert output_of(f'it=old\nfalse\n{wide}\necho "$? $PWD"; f') == "1 old\n7 /\nnew one\n"


def test_a_wide_line_of_blanks_is_none() -> None:
    assert line_of(" \n", 4) == " \n"


def test_other_kinds_stay_unchanged() -> None:
    params: Params = EnvRead(path="{dop}")

    assert with_dop(params, 4) is params
