"""The architecture is a test: every rule, over every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.executors import MAY_NAME, named_resources
from tests.architecture.rules import RULES, Rule
from tests.architecture.source import modules

ROOT = Path(__file__).parents[2]
TREE = modules(ROOT, "services", "shared", "treadle")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    broken = [str(finding) for module in TREE for finding in rule(module)]
    assert not broken, "\n".join(["", *broken])


def test_the_rules_see_the_tree() -> None:
    """A rule over no files would keep itself."""
    seen = {module.path for module in TREE}
    assert {"shared/policy/dispatch/dispatcher.py", "services/proxy/leader/leader.py", "treadle/cli/main.py"} <= seen


def test_every_module_that_may_name_a_resource_names_one() -> None:
    """An exception that nothing needs would hide the next name."""
    found = {module.path for module in TREE if any(named_resources(module))}
    assert set(MAY_NAME) <= found
