# Everything a person types. A fresh machine needs Python 3.11, git and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Workers of the tests, two a core up to eight: half of what they do is waiting for processes, timers and pages.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 4 ? 8 : 2 * cores)))
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup compile browser peers check test demo bench lock

help: ## Show what can be made
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv, install the locked, hashed dependencies, compile the hot modules if there is a C compiler
	@$(BIN)/python -m compiled.build --if-possible

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

compile: $(STAMP) ## Compile the hot modules (by cc, or a C compiler fetched into .venv); without it they run in plain Python
	@$(BIN)/python -c 'from compiled import compiler; compiler.command()' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-compiler.lock
	@$(BIN)/python -m compiled.build

browser: $(STAMP) ## Find a Chromium for the tests, or install one
	@$(BIN)/python tests/browser/find_browser.py

peers: $(STAMP) ## Find or fetch the programs the tests compare with (Prometheus, VictoriaMetrics, Alertmanager, nginx, HAProxy)
	@$(BIN)/python tests/peers.py

check: $(STAMP) ## Lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo '$(BIN)/basedpyright, on the product and on its tests and benchmarks'; $(BIN)/basedpyright -p tests/pyrightconfig.json & calls=$$!; \
		$(BIN)/basedpyright; types=$$?; wait $$calls && exit $$types
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

test: setup browser ## Run every test, browser included
	-@$(BIN)/python tests/peers.py
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

demo: setup ## Run everything on this machine: Postgres, 12 simulated nodes, 2 gateways, controller, dashboard
	$(BIN)/rhodeck demo

bench: setup ## Run the benchmarks and print ratios to peers
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lock: ## Write the lock files again from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --extra tokenizers --extra tracing --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -o requirements.lock
	uv pip compile --group compiler --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -o requirements-compiler.lock
