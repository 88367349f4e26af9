"""Model services of one node: engines that are loaded, evicted, restored, checked and used."""
