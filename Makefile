# What a newcomer needs: `make report`, `make demo` and `make test`. All set up .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   := demo
REPORT := $(if $(RUN),report.html,$(DEMO)/report.html)
COUNT  ?= 100000
SECONDS ?= 60
MILLIONS ?= 1 5
FUZZ   := .venv-fuzz
MACHINE_CODE ?= $(VENV)/machine_code
# further Pythons that a wheel brings machine code for, such as "python3.12 python3.13"; each in an environment of its own
PYTHONS ?=
# asks for packages that only its converter needs and that hold back pandas: installed without these
MLC_CHAKRA := mlc-chakra==1.0.0
# what installs the packages of `environment`; uv takes the same arguments
PIP    ?= $(BIN)/python -m pip

.PHONY: environment report demo test docs thorough fuzz mutate lint types style layers bench errors picture pictures tables outputs loops code man schemas wheel release clean

report demo: export PYTHONDONTWRITEBYTECODE :=

report: $(VENV)/run.stamp ## a report of RUN, a folder of profiles, or of a sample job
	@mkdir -p $(dir $(REPORT))
	$(if $(RUN),,test -d $(DEMO)/profiles || $(BIN)/chopper-convert --quiet --demo $(DEMO)/profiles)
	$(BIN)/chopper-analyze --quiet $(if $(RUN),"$(RUN)",$(DEMO)/profiles) --html $(REPORT)
	@echo "Open $(REPORT) in a browser."

demo: $(VENV)/run.stamp ## convert a sample job, and say what to open
	rm -rf $(DEMO)
	$(BIN)/chopper-convert --quiet --demo $(DEMO)/profiles
	$(BIN)/chopper-convert --quiet $(DEMO)/profiles -o $(DEMO)/job.parquet -o $(DEMO)/et/ -O mode=gpu
	$(BIN)/chopper-check $(DEMO)/et/profiles
	$(BIN)/chopper-analyze $(DEMO)/job.parquet --quiet temporal critical_path idle dvfs findings -o $(DEMO)/job.pftrace --html $(DEMO)/report.html
	@echo
	@echo "Open $(DEMO)/report.html in a browser: what the steps consist of, and what to do first."
	@echo "Open $(DEMO)/job.pftrace in Perfetto (nothing is uploaded): $(BIN)/chopper-view $(DEMO)/job.pftrace"
	@echo "A simulator such as ASTRA-sim runs $(DEMO)/et/profiles.*.et."

# without bytecode each worker would compile all modules and rewrite all assertions at each run
test: $(VENV)/test.stamp ## all tests, on all cores
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist worksteal -q

docs: $(VENV)/docs.stamp ## the site, in docs/_build/html; runs the notebooks, and fails on broken links
	$(BIN)/sphinx-build -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html

thorough: $(VENV)/test.stamp ## slow tests too, and other random cases at each run
	$(BIN)/pytest -n auto --dist worksteal -q -m "slow or not slow" --hypothesis-profile=explore

mutate: $(VENV)/test.stamp ## COUNT damaged inputs, as the tests try a few of
	$(BIN)/python tests/support/mutations.py $(COUNT)

fuzz: $(FUZZ)/fuzz.stamp ## each family of readers for SECONDS of a processor, guided by coverage; the corpus grows in .cache/fuzz
	NUMBA_DISABLE_JIT=1 $(FUZZ)/bin/python tests/support/guided.py .cache/fuzz $(SECONDS)

lint: types style layers ## style, types, layers, reasons of constants and loops

types: $(VENV)/dev.stamp
	$(BIN)/mypy

style: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(VENV)/dev.stamp
	$(BIN)/lint-imports
	$(BIN)/python tests/support/reasons_report.py

bench: $(VENV)/test.stamp ## one table of time and memory, with ratios to other tools; MILLIONS of events
	$(BIN)/python tests/benchmarks/bench.py $(MILLIONS)

errors: $(VENV)/test.stamp ## errors of what_if on generated programs of which the truth is known
	$(BIN)/python tests/benchmarks/changes.py

picture: $(VENV)/test.stamp ## the picture of the README, by Perfetto's UI in Chromium
	$(BIN)/python tests/support/picture.py tests/demo/picture.png

pictures: $(VENV)/test.stamp ## screenshots of the report, and of jobs in Perfetto, by Chromium, in pictures/
	$(BIN)/python tests/support/report_pictures.py pictures
	$(BIN)/python tests/support/perfetto_pictures.py pictures

tables: $(VENV)/test.stamp ## tables of the docs: formats, analyses, findings, columns
	$(BIN)/python tests/support/pages.py tables

outputs: $(VENV)/test.stamp demo ## outputs of commands that the docs show, by the sample job
	$(BIN)/python tests/support/pages.py outputs $(DEMO)/profiles

loops: $(VENV)/test.stamp ## the list of loops that a first command has compiled by a second process
	$(BIN)/python tests/support/loops.py

code: $(VENV)/test.stamp ## compile the loops ahead, so that a wheel's first run does not; for PYTHONS too
	$(BIN)/python tests/support/machine_code.py $(MACHINE_CODE)
	set -e; for python in $(PYTHONS); do $(MAKE) code PYTHONS= PYTHON=$$python VENV=.venv-$${python##*/}; done

man: $(VENV)/dev.stamp ## man pages of the commands, in man/, for the wheel
	$(BIN)/python tests/support/man_pages.py man

schemas: $(VENV)/dev.stamp ## compile the .proto files
	$(BIN)/python -m grpc_tools.protoc -Ischemas --descriptor_set_out=schemas/chakra_et.binpb schemas/chakra_et.proto schemas/chakra_et_old.proto

# machine code for this version of Python is in the wheel alone
wheel: $(VENV)/dev.stamp code man ## sdist, and the wheel that comes of it
	rm -rf dist build
	$(BIN)/python -m build --quiet --no-isolation --sdist
	mkdir build
	tar -xzf dist/*.tar.gz -C build --strip-components 1
	cp -r chopper_interop/machine_code build/chopper_interop/
	cp -r man build/
	$(BIN)/python tests/support/release.py --readme build/README.md build/PKG-INFO
	$(BIN)/python -m build --quiet --no-isolation --wheel --outdir dist build
	rm -rf build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents --toplevel chopper_interop --package chopper_interop --package-omit "README.md,*.pyc,__pycache__" dist/*.whl

release: wheel ## the same, and an error for each thing that a published package must have and this one lacks
	$(BIN)/python tests/support/release.py dist

clean:
	rm -rf $(VENV) $(FUZZ) $(DEMO) chopper_interop/machine_code docs/_build man pictures build dist *.egg-info

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and "Python %d.%d is too old: make PYTHON=... names one of 3.10 or newer" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

environment: $(VENV)/pip.stamp ## all packages for these targets, at once: each call of pip looks again at what there is
	PYTHONWARNINGS=ignore $(PIP) install --quiet --no-compile --editable ".[report]" --group dev --group docs
	$(PIP) install --quiet --no-deps "$(MLC_CHAKRA)"
	touch $(VENV)/run.stamp $(VENV)/test.stamp $(VENV)/docs.stamp $(VENV)/dev.stamp

# of its own: atheris has no wheels for the newest Pythons
$(FUZZ)/fuzz.stamp: pyproject.toml
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet "pip>=25.1"
	$(FUZZ)/bin/python -m pip install --quiet --group fuzz --editable .
	touch $@

# modules are compiled when they are first imported: all of them take half of pip's time
$(VENV)/run.stamp: $(VENV)/pip.stamp pyproject.toml
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile --editable ".[report]"
	touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp
	$(BIN)/python -m pip install --quiet --group test
	$(BIN)/python -m pip install --quiet --no-deps "$(MLC_CHAKRA)"
	touch $@

$(VENV)/docs.stamp: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

$(VENV)/dev.stamp: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --group dev
	touch $@
