"""The dispatcher: stimulus in, commands out (DistRS §4, ARL-Tangram §4)."""
