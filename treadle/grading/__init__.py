"""Grading of a file: its format and validation, the run through the mesh, and the figures of the result.

`format` and `check` validate lines, `session` runs batches, `rewards`, `timing`, `resources` and `agreement` compute
the report, `mutants` and `humaneval` make the demo's programs. Only `render` writes to a terminal.
"""
