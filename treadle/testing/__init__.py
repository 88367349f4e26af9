"""What tests and demos start: servers, whole stacks. Shipped, so that users can test against the real thing."""
