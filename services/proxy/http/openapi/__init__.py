"""The OpenAPI 3.1 document: FastAPI's own, with the hot routes written in beside them, in a form generators can use."""
