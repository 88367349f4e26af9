"""Grading a file: its format and validation, the run through the mesh, and what comes out of it as figures.

`format` and `check` decide what a line means, `session` runs batches, `rewards`, `timing`, `resources` and `agreement`
are the report's arithmetic, `mutants` and `humaneval` make the demo's programs. `render` and `progress` are the only
parts that know a terminal.
"""
