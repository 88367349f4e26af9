"""The command line: thin. Each command is a module with ``register(app)``, imported only when it is called."""
