"""Fit of an entry to the GPUs of a node."""

from __future__ import annotations

from collections.abc import Sequence

from shared.model_services.entries import ServiceEntry


def missing_devices(entry: ServiceEntry, device_gb: Sequence[float]) -> str:
    """Return why no engine of an entry fits a node; empty if one does.

    Args:
        entry: the entry.
        device_gb: memory of each GPU of the node.
    """
    gpus = len(device_gb)
    needed_gb = [gb for degree, gb in entry.awake_gb_by.items() if degree <= gpus]
    if not needed_gb:
        return f"it needs {min(entry.degrees)} GPUs, and this node has {gpus}"
    least, most = min(needed_gb), max(device_gb)
    if least > most:
        return f"it needs {least:g} GB of each GPU, and the largest of this node has {most:g} GB"
    for degree in entry.degrees:
        first = entry.first_gpu_of(degree)
        if first is not None and first + degree > gpus:
            return f"first_gpu: its engine would be on GPU {first + degree - 1}, and this node has {gpus} GPUs"
    return ""
