"""The live demo of model services, `treadle demo --gpu`: three real models, room for two, engines killed at random."""
