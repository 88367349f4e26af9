"""Records that every replica reads and writes: actions, answers, batches, tasks, trajectories."""
