"""Sandboxes for model-written programs. A cell runs one program after another of one tenant."""
