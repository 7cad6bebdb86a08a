# make demo, make fleet-demo, make test: each does all its set-up on a fresh machine, in .venv; a second run reuses it.
#   make demo ARGS="--headless --episodes 5 --json out/demo.json"
#   make test ARGS="test/control -k blend"
# PYTHON names the interpreter .venv is made from (3.10 to 3.13); without it a fitting one is looked for.
# DISTRO names the ROS distribution: jazzy (default) or kilted. Another one than before makes .venv anew.

SHELL := /bin/bash
BIN := .venv/bin
SITE := out/docs/bin

# A sourced ROS 2, another virtual environment or an outer make must not reach into this one.
ifneq ($(AMENT_PREFIX_PATH)$(_ROS_WHEELS_BOOTSTRAP_COMPLETE),)
unexport LD_LIBRARY_PATH
endif
unexport AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONHOME PYTHONPATH VIRTUAL_ENV
unexport ROS_DISTRO ROS_PYTHON_VERSION ROS_VERSION RMW_IMPLEMENTATION _ROS_WHEELS_BOOTSTRAP_COMPLETE
unexport MAKEFLAGS MAKELEVEL MFLAGS
# Hundreds of processes import the package: each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv venv-test demo fleet-demo lint ruff test test-slow test-all test-gpu test-launch test-peers kernels sanitize mutations fuzz docs clean distclean

help:  ## this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv:  ## .venv with ROS 2, the messages and the package
	@python=$$(bash scripts/python.sh $(PYTHON)) && exec "$$python" scripts/environment.py $(DISTRO:%=--distro %)

venv-test:
	@python=$$(bash scripts/python.sh $(PYTHON)) && exec "$$python" scripts/environment.py --test $(DISTRO:%=--distro %)

demo: venv  ## the simulated robot, driven for about a minute
	@exec $(BIN)/vla demo $(ARGS)

fleet-demo: venv  ## three simulated robots on one scheduler; one robot and the scheduler are killed
	@exec $(BIN)/vla fleet-demo $(ARGS)

# A new .venv has no types of torch and numpy in the cache: a minute of one core.
MYPY := $(BIN)/mypy --cache-dir .venv/mypy

ruff: venv-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: ruff  ## ruff and mypy
	$(MYPY)

# Who names tests gets all of them. What starts nodes is run by two workers (test/workers.py), the rest beside them at a
# lower priority.
PYTEST := $(BIN)/pytest --dist loadgroup --no-loadscope-reorder --rerun-show-tracebacks

test: export OMP_NUM_THREADS := 1
test: export TESTS := $(if $(ARGS),,quick)
test: lint  ## lint and most tests: not what starts nodes, compiles for GPUs, tries a bench, trains or breaks lines; ten minutes of two cores
	$(PYTEST) -n 2 $(ARGS)

test-slow: export OMP_NUM_THREADS := 1
test-slow: export TESTS := slow
test-slow: venv-test  ## the other tests, which CI runs, too; of both, those marked gpu where there is a CUDA device
	$(PYTEST) -n 3 $(ARGS)

test-all: test test-slow  ## lint and all tests

test-gpu: venv-test  ## the tests marked gpu
	@$(BIN)/python -c "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'make test-gpu needs a CUDA device: torch sees none')"
	$(BIN)/pytest -m gpu $(ARGS)

test-launch: export AMENT_PREFIX_PATH := $(AMENT_PREFIX_PATH)
test-launch: export LD_LIBRARY_PATH := $(LD_LIBRARY_PATH)
test-launch: export PYTHONPATH := $(PYTHONPATH)
test-launch: export ROS_DISTRO := $(ROS_DISTRO)
test-launch:  ## the tests marked launch, which run ros2 launch: in a sourced workspace
	@command -v ros2 >/dev/null || { echo "make test-launch needs ros2: source ROS 2 and the workspace"; exit 1; }
	python3 -m pytest -m launch $(ARGS)

# openpi's own package needs all of its models' dependencies; its server needs none of them.
OPENPI := git+https://github.com/Physical-Intelligence/openpi@15a9616a00943ada6c20a0f158e3adb39df2ccac
ROSETTA := dfd07e40e1a20825e3a3f37cc897663fb3759285
test-peers: venv-test  ## others' own programs (openpi, lerobot, vla-eval, rosetta), installed into out/peers (5 GB, Python 3.12)
	@for peer in $(basename $(notdir $(wildcard requirements/peers/*.txt))); do \
	  [ -x out/peers/$$peer/bin/pip ] || $(or $(PYTHON),python3.12) -m venv out/peers/$$peer && \
	  out/peers/$$peer/bin/pip install --quiet --disable-pip-version-check -r requirements/peers/$$peer.txt || exit 1; \
	done
	@out/peers/openpi/bin/pip install --quiet --disable-pip-version-check --no-deps "$(OPENPI)"
	@out/peers/lerobot/bin/pip install --quiet --disable-pip-version-check --no-deps ./plugins/lerobot
	@[ -d out/peers/rosetta/source ] || git clone --quiet https://github.com/iblnkn/rosetta out/peers/rosetta/source
	@git -C out/peers/rosetta/source checkout --quiet $(ROSETTA)
	@out/peers/rosetta/bin/pip install --quiet --disable-pip-version-check --no-deps out/peers/rosetta/source
	PEERS=$(abspath out/peers) $(BIN)/pytest -m peers test/tools test/wire test/contract $(ARGS)

kernels: export OMP_NUM_THREADS := 1
kernels: venv-test  ## kernels and stages in every case; a commit needs fewer
	EVERY_CASE=1 $(BIN)/pytest -n 2 test/kernels test/engine/stages $(ARGS)

sanitize: venv-test  ## the kernels under compute-sanitizer: memory and races; a few minutes
	$(BIN)/python test/kernels/sanitize.py

mutations: venv-test  ## lines that are broken on purpose, each of which a test must notice; two minutes
	$(BIN)/python test/mutations.py $(ARGS)

fuzz: venv-test  ## a million damaged inputs, as many of rings and schedules, 25 million events that must not break a limit
	$(BIN)/python test/fuzz $(ARGS)
	FUZZ_CASES=1000000 $(BIN)/pytest -q test/sensing/cameras/test_ring_fuzz.py
	SCHEDULES=1000000 $(BIN)/pytest -q test/engine/test_schedules.py
	$(BIN)/python test/control/adversary.py --events 10000000 --processes $$(nproc)
	$(BIN)/python test/control/adversary_of_many.py --events 10000000 --processes $$(nproc)
	$(BIN)/python test/control/adversary_of_extremes.py --events 5000000 --processes $$(nproc)
	$(BIN)/python test/control/adversary_of_speeds.py --events 5000000 --processes $$(nproc)

docs:  ## the documentation as a site, in out/site; installs mkdocs-material into an environment of its own
	@python=$$(bash scripts/python.sh $(PYTHON)) && { [ -x $(SITE)/mkdocs ] || "$$python" -m venv out/docs; }
	@$(SITE)/pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	$(SITE)/mkdocs build --strict $(ARGS)

clean:  ## remove what builds and runs left
	rm -rf build install log out .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf .venv
