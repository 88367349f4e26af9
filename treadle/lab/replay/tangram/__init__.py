"""ARL-Tangram's evaluation of CPUs (§6.3, §6.4) in virtual time: trajectories think and act in a closed loop."""
