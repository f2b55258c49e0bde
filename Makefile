# neuron-autoport: every command that a fresh clone needs. `make` alone lists them.

# Which model the demo runs: smollm2-135m, gemma3-270m, or a folder with a Hugging Face model.
MODEL ?= smollm2-135m
VENV := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo-model demo lint format types test test-fast test-serve pages docs coverage served drift clean

help: ## list the commands
	@echo "neuron-autoport: make COMMAND [MODEL=smollm2-135m|gemma3-270m|FOLDER]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv and install everything into it (again only when something changed)
	@bash tools/setup.sh

demo-model: setup ## prepare the model folder of MODEL and print its path last
	@$(VENV)/python -m tools.prepare_model "$(MODEL)"

demo: setup ## inspect MODEL, serve it with vLLM and compare it with Hugging Face
	@$(VENV)/python -m tools.demo "$(MODEL)"

lint: setup
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .

format: setup ## bring the code into the common format
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

types: setup
	$(VENV)/mypy neuron_autoport tools benchmarks

test-fast: setup ## only the tests that start no vLLM, in two processes
	OMP_NUM_THREADS=1 $(VENV)/pytest -m "not serve" -n 2 --dist loadfile

# pytest ends with 5 when no test was selected.
test-serve: setup ## only the tests that serve through vLLM
	@echo '$(VENV)/pytest -m serve -n 2 --maxschedchunk=1'; $(VENV)/pytest -m serve -n 2 --maxschedchunk=1; code=$$?; \
	if [ $$code -eq 5 ]; then echo "no test is marked 'serve'"; else exit $$code; fi

# One after the other, also under `make -j`: each stops the rest when it fails.
test: setup ## lint, check types, run all tests (the fast ones first)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory test-fast
	@$(MAKE) --no-print-directory test-serve

pages: setup ## make the pages of docs/ that come from the code, the rules and the coverage run
	for name in codes rules words; do $(VENV)/python -m neuron_autoport.explain $$name > docs/$$name.md; done
	$(VENV)/python -m benchmarks.models_page > docs/models.md

docs: setup ## build the documentation into build/docs; a link that leads nowhere fails
	$(VENV)/mkdocs build --strict

coverage: setup ## port and prove all 134 model types, beside what vLLM fuses (some minutes)
	OMP_NUM_THREADS=1 $(VENV)/python -m benchmarks.coverage

served: setup ## serve all 134 model types in vLLM's engine and compare tokens (half an hour)
	OMP_NUM_THREADS=1 $(VENV)/python -m benchmarks.served

drift: setup ## the same on three transformers versions, held to what is kept of each (half an hour at most)
	OMP_NUM_THREADS=1 $(VENV)/python -m benchmarks.drift

clean: ## remove .venv and what builds and tests leave behind
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
