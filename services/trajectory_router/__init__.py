"""The trajectory router: an OpenAI-compatible front to inference engines."""
