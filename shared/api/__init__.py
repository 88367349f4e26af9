"""Bodies of the REST API: msgspec structs on hot routes (thousands of calls a second), pydantic models on the others.

Names are the contract with trainers. Clients are generated from them.
"""
