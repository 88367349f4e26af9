"""Elastic scheduling: how many units each of several candidates gets (ARL-Tangram §4.2)."""
