"""One CPU host: exclusive cores, sandboxes, graders. Obeys grants, reports outcomes."""
