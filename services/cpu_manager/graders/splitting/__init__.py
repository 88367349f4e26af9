"""Asserts in two parts: calls, which run in the sandbox, and comparisons, which run outside with the expected values.

`split(text)` reads the text of the tests and nothing else, so a sample has no influence on it. It returns a `Plan`, or
None where the text has no such form. `Judge` compares what the sandbox sent with the plan. Both are pure: no IO, no
clock, bounded work. docs/graders.md lists the forms.
"""
