# What people and CI run. Nothing else hides elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

# What is imported once is kept compiled, whatever the environment says: tests start hundreds of processes, and each
# would compile numpy, Ray, torch and bpr anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test check clustertests docs bench figures reliability mutate sanitize neon clean

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: $(VENV)/.installed    ## a virtual environment with bpr and all that its checks need

# What a person who uses bpr has; what one who changes it needs is more, and takes longer to fetch. Not compiled: most of
# it is never imported, and what is, Python compiles then, once.
$(VENV)/.plain: EXTRA := [serve]
$(VENV)/.installed: EXTRA := [dev]
$(VENV)/.plain $(VENV)/.installed: pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.$(EXTRA)'
	touch $@

demo: $(or $(wildcard $(VENV)/.installed),$(VENV)/.plain)    ## index real passages that come with bpr, and ask them
	$(BIN)/bpr demo

check: install   ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Types keep one core busy for two minutes, and a cluster mostly waits.
test: install    ## all checks and tests, with branch coverage (at least 95 %)
	$(MAKE) --jobs 2 check clustertests
	$(BIN)/pytest -n $(JOBS) --dist worksteal --ignore tests/cluster --cov --cov-append --cov-report=term --cov-fail-under=95

# One by one, and beside no other tests: two Ray clusters on one machine kill each other's processes.
clustertests: install
	$(BIN)/pytest tests/cluster --cov --cov-report=

docs: install    ## the site → build/site, after the pages that the program writes itself
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/licences.py
	$(BIN)/python tools/anatomy.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reliability: install    ## the whole campaigns: property tests, mutations, kills, power cuts (make test runs a slice)
	BPR_CAMPAIGN=full $(BIN)/pytest -n $(JOBS) tests/reliability tests/properties

# In a copy, and without the editable installation, which would always import src/: what is tested is mutants/.
mutate: install  ## mutation tests of codes, bundle and search (mutmut; an hour or two on 2 cores)
	rm -rf build/mutate && mkdir -p build/mutate/mutants/src/bpr
	git ls-files -z src tests native docs README.md pyproject.toml | xargs -0 cp --parents -t build/mutate
	$(PYTHON) -m venv build/mutate/.venv
	build/mutate/.venv/bin/pip install --quiet -c constraints.txt '.[dev]' mutmut
	cp build/mutate/.venv/lib/python3*/site-packages/bpr/_native*.so build/mutate/mutants/src/bpr/
	cd build/mutate && .venv/bin/mutmut run --max-children $(JOBS) && .venv/bin/mutmut results

# A bar that does not hold ends its script with 1: the others are still measured, and make says so at the end.
bench: install   ## this machine against its peers, and the service and a cluster under load → benchmarks/results, docs
	$(BIN)/python benchmarks/all.py --again

figures: install ## everything that is measured, with DATA=FOLDER (docs/reproduction.md) and WORK=DIR; goes on where it was
	@test -n "$(DATA)" && test -n "$(WORK)" || { echo 'make figures DATA=FOLDER WORK=DIR'; exit 2; }
	$(BIN)/python benchmarks/all.py --data "$(DATA)" --work "$(WORK)"

# Deselected: it forks while other threads allocate, which AddressSanitizer's allocator does not survive (glibc's does).
sanitize:        ## the kernel and its tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake -S . -B build/sanitize -DCMAKE_BUILD_TYPE=Release -DBPR_SANITIZE=ON
	cmake --build build/sanitize --parallel $(JOBS)
	build/sanitize/harness
	$(PYTHON) -m venv build/sanitize-venv
	build/sanitize-venv/bin/pip install --quiet -c constraints.txt -C cmake.define.BPR_SANITIZE=ON '.[dev]'
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		build/sanitize-venv/bin/pytest -p no:cacheprovider tests/test_bert.py tests/test_cells.py tests/test_hash.py tests/test_kernels.py tests/test_index.py tests/test_stages.py tests/properties \
		--deselect tests/test_kernels.py::test_forking_while_other_threads_search

neon:            ## the ARM kernel, cross-compiled and run under emulation (needs g++-aarch64-linux-gnu and qemu-user)
	cmake -S . -B build/neon -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
	cmake --build build/neon --parallel $(JOBS)
	qemu-aarch64 build/neon/harness

clean:           ## everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
