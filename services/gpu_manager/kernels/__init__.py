"""CUDA kernels that models have written: run on one GPU behind walls, judged and timed by another process."""
