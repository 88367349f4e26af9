"""Graders, one small module per action kind: parameters in, sandbox jobs, one verdict out. Guide: docs/graders.md."""
