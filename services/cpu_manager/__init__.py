"""One CPU host: exclusive cores, one-shot sandboxes, graders. Obeys grants, reports outcomes."""
