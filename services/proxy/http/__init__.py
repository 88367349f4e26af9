"""Routes and what they need: bodies, deadlines, held calls, the OpenAPI document."""
