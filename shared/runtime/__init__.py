"""Parts that every process of the mesh uses: application, background tasks, errors, log, settings."""
