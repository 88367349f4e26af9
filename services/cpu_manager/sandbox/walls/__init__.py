"""The kernel's walls, one module each: system calls, seccomp, Landlock, control groups and the read-only view."""
