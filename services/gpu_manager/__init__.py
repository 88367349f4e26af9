"""GPU manager: makes model services resident on the GPUs of its node, and executes their actions."""
