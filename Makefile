# thawfs: one Makefile, no recursion into folders.  'make help' lists the targets.
#
# Settings: CC CFLAGS CPPFLAGS LDFLAGS PREFIX DESTDIR BUILD   V=1 shows commands
#           T=prefix (check: run only those tests)   FUZZ_TIME=seconds per target

CFLAGS     ?= -O2 -g
PREFIX     ?= /usr/local
BUILD      ?= build
FUZZ_TIME  ?= 60
PKG_CONFIG ?= pkg-config
CLANG      ?= clang
Q          := $(if $(V),,@)

PKGS_LIB  := libzstd libxxhash liblz4 zlib libcjson
PKGS_FUSE := fuse3
# Looked up when first needed, and once: 'make help' and 'make deps' work without any library, and 'make deps check'
# finds what 'deps' has just installed. What needs libraries or tools waits for 'deps' when both are asked for.
pkg        = $(shell $(PKG_CONFIG) $1 $(PKGS_LIB) $(PKGS_FUSE))$(if $(filter-out 0,$(.SHELLSTATUS)),$(error \
               libraries are missing: run 'make deps' first))
pkg_cflags = $(eval pkg_cflags := $$(call pkg,--cflags))$(pkg_cflags)
pkg_libs   = $(eval pkg_libs := $$(call pkg,--libs))$(pkg_libs)
after_deps := $(filter deps,$(MAKECMDGOALS))

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wformat=2 \
        -Wpointer-arith -Wimplicit-fallthrough
all_cppflags = -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 $(pkg_cflags) $(CPPFLAGS)
all_cflags   = -std=c11 -pthread $(WARN) $(CFLAGS)
all_libs     = $(LDFLAGS) $(pkg_libs) -ldl -pthread -lm

# Everything but the mains is one archive, so a program, test or benchmark is one object and the archive.
SRC     := $(wildcard common/*.c imgfmt/*.c gpu/*.c restore/*.c fs/*.c lib/*.c cli/*.c)
MTCP_SRC := $(wildcard restore/mtcp/*.c)
# The restarter and the example that checkpoints itself know the registers of one machine.
X86_64    := $(filter x86_64,$(shell uname -m))
RESTARTER := $(if $(X86_64),$(BUILD)/thawfs-mtcp-restart)
MAINS   := cli/thawfs_main.c
LIBOBJ  := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(MAINS),$(SRC)))
PROGS   := $(patsubst %_main.c,$(BUILD)/%,$(notdir $(MAINS)))
TESTS   := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/test_*.c))
TOOLS   := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/tool_*.c))
SHIMS   := $(patsubst tests/%.c,$(BUILD)/tests/%.so,$(wildcard tests/shim_*.c))
DOUBLE  := $(BUILD)/tests/double/libcuda.so.1
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz_*.c))
EXAMPLES := $(if $(X86_64),$(BUILD)/examples/selfckpt)
# What programs that are not thawfs link: only the names that lib/thaw.h declares.
PUBLIC  := $(BUILD)/lib/libthaw.a
USERS   := $(BUILD)/examples/nbody
REPLAYS := $(FUZZERS:%=%.replay)
BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/bench_*.c))
CFILES  := $(SRC) $(MTCP_SRC) $(wildcard tests/*.c tests/double/*.c bench/*.c examples/*/*.c)
HFILES  := $(wildcard */*.h restore/mtcp/*.h tests/double/*.h examples/*/*.h)
SHFILES := $(wildcard tests/*.sh bench/*.sh dist/*.sh dist/*.bash examples/*.sh) bench/unmap .ci/run

all: $(PROGS) $(RESTARTER) $(EXAMPLES) $(PUBLIC) $(USERS)              ## build the programs (default)

deps:                                    ## install what building and testing needs (apt, as root)
	$(Q)dist/deps.sh

demo: all $(TOOLS)                       ## pack, look into and unpack a checkpoint, step by step
	$(Q)BUILD=$(BUILD) examples/demo.sh

check: check-programs                    ## run every test; T=prefix runs some
	$(Q)BUILD=$(BUILD) tests/run.sh $(T)
check-long: check-programs               ## the tests with the loops that are too long for every day
	$(Q)THAW_LONG=1 TEST_TIMEOUT=$${TEST_TIMEOUT:-7200} BUILD=$(BUILD) tests/run.sh $(T)
check-programs: all $(TESTS) $(TOOLS) $(SHIMS) $(DOUBLE) $(REPLAYS)

gpu-check: check-programs                ## the GPU tests with the driver and the cards of this machine
	$(Q)THAW_GPU=real BUILD=$(BUILD) tests/run.sh gpu

bench: $(PROGS) $(TOOLS) $(DOUBLE) $(BENCHES)      ## run the benchmarks (see bench/README.md)
	$(Q)BUILD=$(BUILD) bench/run.sh $(T)

SAN := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all
asan: | $(after_deps)                    ## 'check' under AddressSanitizer and UBSan
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/asan CFLAGS='$(SAN) -fsanitize=address,undefined' THAW_SAN=asan check
tsan: | $(after_deps)                    ## 'check' under ThreadSanitizer
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan CFLAGS='$(SAN) -fsanitize=thread' THAW_SAN=tsan check
export THAW_SAN

fuzz: | $(after_deps)                    ## fuzz each parser for FUZZ_TIME seconds (clang)
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/fuzz CC=$(CLANG) fuzz-run \
		CFLAGS='$(SAN) -fsanitize=fuzzer-no-link,address,undefined'
fuzz-run: $(FUZZERS)
	$(Q)for f in $(FUZZERS); do n=$${f##*/fuzz_}; mkdir -p $$f.new; echo "fuzz $$n"; \
		$$f -max_total_time=$(FUZZ_TIME) -rss_limit_mb=1024 -timeout=20 -print_final_stats=1 \
		$$f.new tests/corpus/$$n || exit 1; done

format: | $(after_deps)                  ## rewrite sources with clang-format
	$(Q)clang-format -i $(CFILES) $(HFILES)
lint: $(CFILES:%.c=$(BUILD)/tidy/%.ok) | $(after_deps)  ## format check, clang-tidy, shellcheck, folder order
	$(Q)clang-format --dry-run -Werror $(CFILES) $(HFILES)
	$(Q)shellcheck -x $(SHFILES)
	$(Q)! grep -nE 'include "(fs|restore|gpu|imgfmt|cli)/' common/*.[ch]
	$(Q)! grep -snE 'include "(fs|restore|gpu|cli)/' imgfmt/*.[ch]
	$(Q)! grep -snE 'include "(fs|restore|imgfmt|cli)/' gpu/*.[ch]
	$(Q)! grep -snE 'include "(restore|gpu|cli)/' fs/*.[ch]
	$(Q)! grep -snE 'include "(fs|cli|lib)/' restore/*.[ch] restore/mtcp/*.[ch]
	$(Q)! grep -snE 'include "(fs|restore|gpu|cli)/' lib/*.[ch]
	@echo "lint: clean"

install: all                             ## install below $(DESTDIR)$(PREFIX)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5
	install -m755 $(PROGS) $(RESTARTER) $(DESTDIR)$(PREFIX)/bin
	install -m644 $(wildcard man/*.1) $(DESTDIR)$(PREFIX)/share/man/man1
	install -m644 $(wildcard man/*.5) $(DESTDIR)$(PREFIX)/share/man/man5
	install -D -m644 $(PUBLIC) $(DESTDIR)$(PREFIX)/lib/libthaw.a
	install -D -m644 lib/thaw.h $(DESTDIR)$(PREFIX)/include/thaw.h
	install -D -m755 dist/mount.fuse.thawfs $(DESTDIR)$(PREFIX)/sbin/mount.fuse.thawfs
	install -D -m644 dist/thawfs.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/thawfs

clean:                                   ## remove everything built
	rm -rf $(BUILD)
help:                                    ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14

say = $(if $(V),,@echo '  $(1)  $@';)
$(BUILD)/%.o: %.c | $(after_deps)
	@mkdir -p $(@D)
	$(call say,CC  )$(CC) $(all_cppflags) -MMD -MP $(all_cflags) -c -o $@ $<
$(BUILD)/libthaw.a: $(LIBOBJ)
	$(call say,AR  )rm -f $@; $(AR) rcs $@ $^
$(PROGS): $(BUILD)/%: $(BUILD)/cli/%_main.o $(BUILD)/libthaw.a
	$(call say,LINK)$(CC) $(CFLAGS) -o $@ $^ $(all_libs)
$(TESTS) $(TOOLS) $(BENCHES): %: %.o $(BUILD)/libthaw.a
	$(call say,LINK)$(CC) $(CFLAGS) -o $@ $^ $(all_libs)
# The restarter has no libc, and nothing in it may need relocation: it copies itself elsewhere.
$(BUILD)/thawfs-mtcp-restart: $(MTCP_SRC) $(wildcard restore/mtcp/*.h) | $(after_deps)
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -I. -std=c11 $(WARN) -O2 -g -ffreestanding -fPIE -fvisibility=hidden -fno-stack-protector \
		-fno-asynchronous-unwind-tables -fcf-protection=none -fno-tree-loop-distribute-patterns -nostdlib \
		-static-pie -Wl,-z,noexecstack -Wl,-z,norelro -Wl,--build-id=none -o $@ $(MTCP_SRC)
	@! readelf -rW $@ | grep -q R_X86 || { echo "$@ needs relocations"; rm -f $@; exit 1; }
# Examples are apart from everything else: what saves or restores itself cannot have a sanitizer in it.
$(EXAMPLES): $(BUILD)/examples/%: $(wildcard examples/*/*.[ch]) | $(after_deps)
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -I. -D_GNU_SOURCE -std=c11 -pthread $(WARN) -O2 -g -fno-stack-protector -o $@ \
		$(filter examples/$*/%.c,$^) -ldl
$(PUBLIC): $(patsubst %.c,$(BUILD)/%.o,$(wildcard lib/*.c)) $(BUILD)/libthaw.a
	$(call say,AR  )$(LD) -r -o $(BUILD)/lib/thaw.o $^ && objcopy -w --keep-global-symbol='thaw_*' $(BUILD)/lib/thaw.o \
		&& rm -f $@ && $(AR) rcs $@ $(BUILD)/lib/thaw.o
$(USERS): $(BUILD)/examples/%: $(wildcard examples/*/*.[ch]) lib/thaw.h $(PUBLIC)
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -I. -D_GNU_SOURCE -std=c11 $(WARN) $(CFLAGS) -ffp-contract=off -o $@ \
		$(filter examples/$*/%.c,$^) $(PUBLIC) $(all_libs)
$(FUZZERS): %: %.o $(BUILD)/libthaw.a
	$(call say,LINK)$(CC) $(CFLAGS) -fsanitize=fuzzer -o $@ $^ $(all_libs)
$(REPLAYS): %.replay: %.o $(BUILD)/tests/replay.o $(BUILD)/libthaw.a
	$(call say,LINK)$(CC) $(CFLAGS) -o $@ $^ $(all_libs)
$(SHIMS): $(BUILD)/tests/%.so: tests/%.c | $(after_deps)
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) $(all_cppflags) -std=c11 $(WARN) -O2 -g -fPIC -shared -o $@ $< -ldl
# What stands in for the GPU driver; under a sanitizer it has that as well, so that its threads are watched.
$(DOUBLE): tests/double/libcuda.c $(wildcard tests/double/*.h gpu/cuda_*.h) | $(after_deps)
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -I. -D_GNU_SOURCE -std=c11 -pthread $(WARN) $(CFLAGS) -fPIC -shared -fvisibility=hidden -o $@ $<
# one file passed clang-tidy; its warnings count is noise ("12 warnings generated" in system headers)
$(BUILD)/tidy/%.ok: %.c $(HFILES) .clang-tidy | $(after_deps)
	@mkdir -p $(@D)
	$(call say,TIDY)clang-tidy --quiet $< -- $(all_cppflags) -std=c11 2>$@.err || { cat $@.err; exit 1; }
	@rm -f $@.err; touch $@

-include $(shell find $(BUILD) -name criu -prune -o -type f -name '*.d' -print 2>/dev/null)
.PHONY: all deps demo check check-long check-programs gpu-check bench asan tsan fuzz fuzz-run format lint install clean help
.SECONDARY:
