"""Routing of model calls to inference workers."""
