"""The REST surface: pydantic at the documented edge, msgspec where thousands a second pass.

Names here are the contract with trainers; the generated clients are made of them.
"""
