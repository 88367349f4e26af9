"""One CPU host: exclusive cores, sandboxes, graders. Executes grants and reports outcomes."""
