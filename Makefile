# The day's commands; CONTRIBUTING.md says more. `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup quick one all docs lint
help:  ## lists the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile
setup:  ## .venv with what tests need
	python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e ".[test]"
quick:  ## the quick tests, 3 to 4 minutes on two idle cores
	.venv/bin/pytest -n 2 -q
one:  ## one file or folder of tests: make one FILE=tests/x.py
	.venv/bin/pytest -q $(FILE)
all:  ## everything, as on a clean clone, under 20 minutes
	.ci/run
docs:  ## the site, into .site
	.venv/bin/pip install -q -c constraints.txt -e ".[docs]" && .venv/bin/mkdocs build --strict --site-dir .site
lint:  ## ruff, its format and ty
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/ty check --python .venv
