"""Asserts in two parts: calls, which run in the sandbox, and comparisons, which run outside with the expected values.

`split(text)` reads only the text of the tests, so a sample has no influence on it. It returns a `SplitPlan`, or None if
the text has no such form. `Judge` compares the sandbox's results with the plan. Both are pure: no IO, no clock, bounded
work. docs/graders.md lists the forms.
"""
