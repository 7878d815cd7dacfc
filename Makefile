# Two environments: .venv holds the core alone (no torch), .venv-test adds the tools and the reference
# implementations. Both are reinstalled only when the pins or the project's metadata change.

PYTHON ?= python3
OUT ?= runs/demo
PYTEST_ARGS ?=

# Huge pages for the tests' own processes; `ectype` itself asks for them (src/ectype/cli/huge_pages.py).
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Where this is set, each of the many processes that the tests start compiles all of JAX's Python anew: 2.3 s each.
export PYTHONDONTWRITEBYTECODE :=

PINS := constraints.txt
XPK := xpk==1.16.0
INSTALL = $(1)/bin/uv pip install -q --python $(1)/bin/python -c $(PINS) -b $(PINS)

.PHONY: demo test test-long check format clean

demo: .venv/installed ## Reproduce the bundled run and print the verdict
	.venv/bin/ectype demo --out $(OUT)

test: .venv-test/installed .venv-xpk/installed ## The test suite, but for what is marked long
	.venv-test/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long" $(PYTEST_ARGS)

test-long: .venv-test/installed ## The rest: toy stages through every hand-over, beside OLMo-core
	.venv-test/bin/python -m pytest -n 0 -m long $(PYTEST_ARGS)

check: .venv-test/installed ## Lint, format, types, import direction, house rules
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/pyright --pythonpath .venv-test/bin/python
	.venv-test/bin/python -m pytest -n 0 tests/test_import_direction.py tests/test_house_rules.py

format: .venv-test/installed ## Sort imports and format
	.venv-test/bin/ruff check --fix .
	.venv-test/bin/ruff format .

clean: ## Remove environments, runs and caches
	rm -rf .venv .venv-test .venv-xpk dist runs .ruff_cache .pytest_cache

.venv/installed: $(PINS) pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -c $(PINS) uv
	$(call INSTALL,.venv) -e .
	touch $@

# torch comes through pip, which picks its small CPU build where one is offered; everything else through uv,
# which is many times faster. OLMo-core and accelerate go last, when their torch requirement is already met.
.venv-test/installed: $(PINS) pyproject.toml
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/pip install -q -c $(PINS) uv
	$(call INSTALL,.venv-test) -e '.[dev,plan]' transformers tokenizers
	.venv-test/bin/pip install -q -c $(PINS) torch
	$(call INSTALL,.venv-test) lm-eval accelerate ai2-olmo-core
	touch $@

# xpk asks for a urllib3 below the one in use here, so it gets an environment of its own; only its dry run is tested.
.venv-xpk/installed: Makefile .venv-test/installed
	$(PYTHON) -m venv .venv-xpk
	.venv-test/bin/uv pip install -q --python .venv-xpk/bin/python $(XPK)
	touch $@
