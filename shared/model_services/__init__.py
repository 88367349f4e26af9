"""Entries of model services: their fields and checks, the same for the operator's file and for REST."""
