"""Token records: how each engine reports the ids of a call, and their durable writing before its answer ends."""
