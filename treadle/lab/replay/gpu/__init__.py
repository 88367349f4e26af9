"""ARL-Tangram's GPUs in virtual time (§6.3, §6.4): many model services on few GPUs."""
