"""Trajectories' environments on this node. Their state lasts between actions; they have cores only during one."""
