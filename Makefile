# make demo    trains on MovieLens-100K and shows the AUC on held-out rows
# make test    the Python tests, against the installed package
# make test-faults   what is done to runs on purpose: kills, damage, full disks, hanging readers; the long ones too
# make bench   every benchmark: first those that show a promise (benchmarks/all.py --others lists them), then `make table`
# make table   the benchmarks that have a rival or a bound, and what they found in one table; BENCH= takes options of
#              benchmarks/all.py, of which --save keeps the results in benchmarks/results (bench_quality always keeps its)
# make lint    ruff, mypy, clang-format
# make native-test   the C++ tests
# make native-sanitize native-tsan   the same with address and undefined-behaviour sanitizers; those with threads, with
#                                    the thread sanitizer
# make clean   removes what these made, runs excepted
#
# Each makes what it needs. Variables: PYTHON (3.11 or later), VENV, BUILD, and TORCH, what pip is asked for as torch:
# on a machine without a GPU, TORCH can name a CPU-only build.

VENV ?= .venv
BUILD ?= build
TORCH ?= torch==2.13.0
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN = $(VENV)/bin
PIP = $(BIN)/pip install -qq --disable-pip-version-check
# In the environment itself, not in one of pip's own for each build: so a changed source rebuilds only what it must.
BUILD_TOOLS = 'scikit-build-core>=0.10' 'nanobind==3.1.*' 'cmake>=3.26' ninja
INSTALLED = $(VENV)/.installed
# Directories are in it so that a removed file counts as a change.
SOURCES = CMakeLists.txt pyproject.toml README.md LICENSE \
	$(shell find src native -name __pycache__ -prune -o -name '*.so' -o -print)
NATIVE = $(shell find native -name '*.h' -o -name '*.cpp')

.PHONY: demo test test-faults bench table lint native-test native-sanitize native-tsan venv clean
.DELETE_ON_ERROR:

venv: $(INSTALLED)

$(VENV)/.prepared:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "sfctr needs Python 3.11 or later; install it, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv python3-dev" >&2; exit 1; }
	@echo "installing $(TORCH) into $(VENV); it is the largest part"
	@$(PIP) $(TORCH) $(BUILD_TOOLS)
	@touch $@

$(INSTALLED): $(VENV)/.prepared $(SOURCES)
	@echo "building sfctr and installing it into $(VENV)"
	@$(PIP) --no-build-isolation --config-settings=build-dir=$(BUILD)/{wheel_tag} '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/sfctr fetch movielens --out examples/data/movielens
	$(BIN)/sfctr train examples/movielens.toml --run runs/movielens --overwrite
	$(BIN)/sfctr predict runs/movielens --data examples/data/movielens/movielens.parquet --out runs/movielens/scores.parquet

test: $(INSTALLED)
	$(BIN)/python -m pytest -q

FAULTS = tests/faults tests/train/test_killed.py tests/train/test_ended_runs.py tests/checkpoint/test_power.py \
	tests/checkpoint/test_checkpoint_faults.py tests/train/test_killed_ranks.py tests/parallel/test_launcher.py \
	tests/parallel/test_machines.py tests/train/test_run_over_machines.py

test-faults: $(INSTALLED)
	$(BIN)/python -m pytest -q -m '' $(FAULTS)

bench: $(INSTALLED)
	@failed=0; began=$$(date +%s); \
	files=$$($(BIN)/python benchmarks/all.py --others) || failed=1; \
	for file in $$files; do \
		echo "== $$file"; $(BIN)/python $$file || failed=1; done; \
	$(BIN)/python benchmarks/all.py $(BENCH) || failed=1; \
	echo "make bench took $$((($$(date +%s) - began) / 60)) minutes"; exit $$failed

table: $(INSTALLED)
	$(BIN)/python benchmarks/all.py $(BENCH)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

CONFIGURE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DSFCTR_TESTS=ON -S .
CTEST = $(BIN)/ctest --no-tests=error --output-on-failure --timeout 300 --test-dir

native-test: $(INSTALLED)
	$(CONFIGURE) -B $(BUILD)/native
	$(BIN)/cmake --build $(BUILD)/native
	$(CTEST) $(BUILD)/native

native-sanitize: $(INSTALLED)
	$(CONFIGURE) -B $(BUILD)/native-sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo '-DSFCTR_SANITIZE=address;undefined'
	$(BIN)/cmake --build $(BUILD)/native-sanitize
	$(CTEST) $(BUILD)/native-sanitize

# Those that run threads beside each other.
SPACE = $(subst ,, )
TSAN_TESTS = test_thread_pool test_row_log_threads test_row_group test_row_group_stress test_snapshot

native-tsan: $(INSTALLED)
	$(CONFIGURE) -B $(BUILD)/native-tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSFCTR_SANITIZE=thread
	$(BIN)/cmake --build $(BUILD)/native-tsan --target $(TSAN_TESTS)
	$(CTEST) $(BUILD)/native-tsan -R '^($(subst $(SPACE),|,$(TSAN_TESTS)))$$'

clean:
	rm -rf $(BUILD) $(VENV) dist examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
