# Treadle. Needs Python >= 3.11 and nothing else; `make` alone says what there is.
SHELL := /bin/bash
BIN := .venv/bin
ARGS ?=
# Most of the suite waits: for services to start, time limits to pass, containers to end.
PARALLEL ?= --numprocesses=2 --dist=loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lock up down status

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv hold what requirements.lock names (once; then a blink)
	@scripts/setup

demo: setup ## The main job: grade real programs, right and wrong, by the whole mesh
	@$(BIN)/treadle demo $(ARGS)

test: setup ## The whole test suite, two files at a time; ARGS="tests/shared/policy -k ebf" narrows it
	@$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

lock: setup ## Renew requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --extra mesh --group pyproject.toml:demo --group pyproject.toml:dev pyproject.toml -o requirements.lock

check: setup ## Format, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

up: setup ## Start the stack in the foreground; Ctrl-C stops it
	@$(BIN)/treadle up $(ARGS)

down: setup ## Stop a stack that runs in the background
	@$(BIN)/treadle down

status: setup ## Show the services of the stack
	@$(BIN)/treadle status
