"""Research parts: replays, evaluations of papers, traces, the bench."""
