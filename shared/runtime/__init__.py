"""What every process of the mesh runs on: application, background tasks, errors, log, settings."""
