"""Sandboxes for programs written by a model, which run here or nowhere: a cell runs one after another of one tenant."""
