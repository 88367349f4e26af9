"""Logging: events in the past tense with fields, one line each, as text for people or as JSON."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(service: str, *, level: str = "INFO", json: bool = False) -> None:
    """Set up structlog and the standard library's logging for this process. Entry points call it, no import does."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # locals have tenants' code, and take up to seconds
        )
    )
    final = [structlog.processors.format_exc_info, renderer] if json else [renderer]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger whose events have the module's name."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(module=name)
    return logger
