"""Bounds of `/run_code` are those of the kind that executes it."""

from __future__ import annotations

from typing import get_args, get_type_hints

from services.cpu_manager.kinds import CodeRun
from services.proxy.http.sandbox_fusion import RunCode


def test_files_have_the_bounds_of_the_kind() -> None:
    edge, kind = (get_type_hints(form, include_extras=True) for form in (RunCode, CodeRun))
    for name, bound in (("files", 4096), ("fetch_files", 1024)):
        assert [get_args(hints[name])[1].max_length for hints in (edge, kind)] == [bound, bound]
