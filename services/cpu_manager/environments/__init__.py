"""Trajectories' environments on this node: state that lives between actions, cores only during one."""
