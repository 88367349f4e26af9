"""The evaluation of DistRS (§6) in virtual time: its workload, its baselines and its figures."""
