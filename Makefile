# The project's tasks. `make help` lists them; each one installs what it needs into .venv first.
#
#   make serve PORT=8080               the demo model behind an API and a chat page
#   make test ARGS='-k scheduler'      part of the tests
#   make setup ACCELERATOR=cuda13      cpu, cuda13 or tpu, where the guess is wrong
#   make setup PYTHON=/path/python3.12 another interpreter

MODEL ?= smollm2-135m-instruct
ACCELERATOR ?=
PYTHON ?=
KERNELS = jax==0.11.2 jaxlib==0.11.2 jax-cuda13-plugin==0.11.2 nvidia-cuda-nvcc>=13,<14 nvidia-cuda-nvdisasm
PORT ?= 8000
ARGS ?=
export ACCELERATOR PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-test serve chat test lint bench kernels kernels-tpu clean

help:   ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup:  ## make .venv and install the engine (again only when pyproject.toml changed)
	@.ci/setup gguf,server

setup-test:
	@.ci/setup gguf,test

setup-dev:  ## the same with what the tests and linters need
	@.ci/setup gguf,dev

serve: setup  ## serve the demo model (MODEL=... for another) on 127.0.0.1:$(PORT), with a chat page
	@.venv/bin/jaxengine serve $(MODEL) --port $(PORT) $(ARGS)

chat: setup  ## chat with the model in the terminal; prompts come from standard input
	@.venv/bin/jaxengine chat $(MODEL) $(ARGS)

test: setup-test  ## run the tests (ARGS=... goes to pytest)
	@.venv/bin/python -m pytest $(ARGS)

lint: setup-dev  ## ruff and pyright
	@.venv/bin/ruff check .
	@.venv/bin/pyright

bench: setup-dev  ## measure speed (ARGS="decode --help" and the like; all of it by default)
	@.venv/bin/jaxengine bench $(or $(ARGS),all)

kernels:  ## compile the kernels and whole steps for chips that are not there (ARGS=--full for every variant)
	@VENV=.venv-kernels ACCELERATOR=cpu CONSTRAINTS='$(KERNELS)' .ci/setup gguf
	@.venv-kernels/bin/python tests/aot/report.py $(ARGS)
	@$(if $(findstring --only,$(ARGS)),,$(MAKE) kernels-tpu ARGS='$(filter --full,$(ARGS))')

kernels-tpu:  ## the part of it that compiles for TPUs
	@VENV=.venv-kernels-tpu ACCELERATOR=tpu CONSTRAINTS='jax==0.11.2 jaxlib==0.11.2' .ci/setup gguf
	@.venv-kernels-tpu/bin/python tests/aot/tpu.py $(ARGS)

clean:  ## remove .venv and what tools leave behind
	rm -rf .venv .venv-floor .venv-clients .venv-kernels .venv-kernels-tpu build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
