"""One-shot sandboxes for programs written by a model. Model-written code runs here or nowhere."""
