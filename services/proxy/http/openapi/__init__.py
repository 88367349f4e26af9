"""OpenAPI 3.1 document: FastAPI's own plus the bare ASGI routes, in a form that client generators accept."""
