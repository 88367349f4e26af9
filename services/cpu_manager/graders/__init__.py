"""One small module per action kind: parameters in, sandbox jobs, one verdict out. docs/graders.md is the guide."""
