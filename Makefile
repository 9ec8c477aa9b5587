# `make run` and `make test` do all set-up by themselves. The Python to use: make PYTHON=python3.12 run
ifndef PYTHON
# macOS's own python3 is older than 3.11, so look for others before giving up.
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; exit; }; done; echo python3)
endif
VENV := .venv/bin/python

.PHONY: run test test-app app release bench lint format lock tour clean python set-up

run: python
	@$(PYTHON) packaging/bootstrap.py run
	@if [ "$$(uname -s)" = Linux ] && [ -z "$$DISPLAY$$WAYLAND_DISPLAY" ]; then \
		echo "There is no display (neither DISPLAY nor WAYLAND_DISPLAY is set): running the tour instead, into build/tour."; \
		$(VENV) -m app --tour build/tour; \
	else \
		$(VENV) -m app; \
	fi

test: set-up
	@QT_QPA_PLATFORM=offscreen $(VENV) -m pytest

# What takes long or downloads much, and the packaged app itself.
test-app: app
	@QT_QPA_PLATFORM=offscreen $(VENV) -m pytest -m large

# The packaged app in dist/; on macOS with a signature (see packaging/README.md), checked, and a disk image.
app: set-up
	@$(VENV) packaging/build_app.py
	@if [ "$$(uname -s)" = Darwin ]; then \
		packaging/sign.sh "dist/VeloxQuant Chat.app" && \
		$(VENV) packaging/verify_bundle.py "dist/VeloxQuant Chat.app" && \
		packaging/make_dmg.sh "dist/VeloxQuant Chat.app" "dist/VeloxQuant-Chat-$$($(VENV) packaging/release.py version)-arm64.dmg"; \
	fi

# Checks that this commit can be released, and says what to do next.
release: set-up
	@$(VENV) packaging/release.py check

# Takes about half an hour, and wants a machine that does nothing else. One alone: make bench ONLY=quality
bench: set-up
	@$(VENV) -m tests.benchmarks $(ONLY)

lint: set-up
	@$(VENV) -m ruff check .
	@$(VENV) -m ruff format --check .
	@$(VENV) -m mypy

format: set-up
	@$(VENV) -m ruff check --fix .
	@$(VENV) -m ruff format .

tour: python
	@$(PYTHON) packaging/bootstrap.py run
	@$(VENV) -m app --tour build/tour

# The lock files hold for Linux and macOS, every Python from 3.11, and name no package index.
UV_COMPILE = build/lock/bin/uv pip compile --quiet --universal --upgrade --generate-hashes --no-emit-index-url --no-header --no-annotate
lock: python
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(UV_COMPILE) pyproject.toml -o requirements.lock
	@$(UV_COMPILE) pyproject.toml --extra test --extra lint --extra package -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf .venv .venv.lock build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find app veloxquant_mlx packaging tests -name __pycache__ -type d -prune -exec rm -rf {} +

set-up: python
	@$(PYTHON) packaging/bootstrap.py test

python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "Python 3.11 or newer is needed, and there is no $(PYTHON) here. Install it, then try again." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install a newer one, then try again, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
