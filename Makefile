# `make help` lists the targets.  The last folder of BUILD chooses the kind of build: build
# (release), build/asan, build/tsan.  Plain `make` never installs anything.
VERSION := 0.1.0
BUILD   := build
PREFIX  := /usr/local
# -march of the CPU kernels
ARCH    := native

# Sanitizers report lines; CFLAGS=-g for a debugger.
OPTIMIZE_asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPTIMIZE_tsan := -O1 -g1 -fsanitize=thread -fno-omit-frame-pointer
OPTIMIZE := $(or $(OPTIMIZE_$(notdir $(BUILD))),-O3 -g)
WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wmissing-prototypes -Wvla -Werror

MAKEFLAGS += --no-builtin-rules --no-print-directory
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

# Libraries; empty where they are not installed yet.  Their headers are taken as the system's, so
# that our warnings are for our code.
system = $(patsubst -I%,-isystem %,$(1))
cflags = $(call system,$(shell pkg-config --cflags $(1) 2>/dev/null))
libs   = $(shell pkg-config --libs $(1) 2>/dev/null)
SIM_CFLAGS   := $(call cflags,glib-2.0 json-glib-1.0)
SIM_LIBS     := $(call libs,glib-2.0 json-glib-1.0) -lm
STORE_CFLAGS := $(call cflags,sqlite3)
STORE_LIBS   := $(call libs,sqlite3)
EXEC_CFLAGS  := -fopenmp $(call cflags,openblas) \
                $(call system,$(shell mpicc --showme:compile 2>/dev/null))
EXEC_LIBS    := -fopenmp -lopenblas -laio -ldl $(shell mpicc --showme:link 2>/dev/null)
CHECK_CFLAGS := $(call cflags,check)
CHECK_LIBS   := $(call libs,check)

# Every folder is a library; a program is that and one *_main.c.
sources  = $(filter-out %_main.c,$(wildcard $(1)))
objects  = $(patsubst %.c,$(BUILD)/%.o,$(1))
SIM_SRC     := $(call sources,sim/*/*.c sim/*.c)
REPORTS_SRC := $(call sources,reports/*/*.c)
EXEC_SRC    := $(filter-out exec/cuda/%,$(call sources,exec/*/*.c))
TEST_SRC    := $(filter-out tests/cuda/% tests/cudasim/%,$(wildcard tests/*/test_*.c))
BENCH_SRC   := $(wildcard tests/bench/bench_*.c)
FLOORS_SRC  := tests/bench/kernel_floors.c
ALL_SRC     := $(wildcard sim/*/*.c sim/*.c reports/*/*.c reports/*.c exec/*/*.c exec/*.c) $(TEST_SRC) $(BENCH_SRC) $(FLOORS_SRC)

PLAN_LIB := $(BUILD)/libreports.a $(BUILD)/libsim.a
RUN_LIB  := $(BUILD)/libexec.a $(PLAN_LIB)
PROGRAMS := $(BUILD)/fsdp-plan $(BUILD)/fsdp-run $(BUILD)/fsdp-report
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)
BENCHES  := $(BENCH_SRC:%.c=$(BUILD)/%)

.PHONY: all bundle check-bundle deps demo check check-all check-unit check-mpi check-e2e check-tsan lint bench bench-peers install clean help
.PHONY: tests benches no-libraries FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: $(PROGRAMS) ## build the three command lines (what plain `make` does)

# Commands are shown whole with V=1.
Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '%-4s %s\n' $(1) $@)

# ---- compile ----

COMPILE = $(CC) -std=gnu11 -I. -MMD -MP $(WARNINGS) $(OPTIMIZE) $(LOCAL) $(SIM_CFLAGS) $(CFLAGS)

$(BUILD)/reports/%.o: LOCAL += $(STORE_CFLAGS)
$(BUILD)/exec/%.o: LOCAL += $(EXEC_CFLAGS)
$(BUILD)/exec/device/cpu_%.o: LOCAL += -march=$(ARCH) -fno-math-errno
$(BUILD)/tests/%.o: LOCAL += $(CHECK_CFLAGS) $(STORE_CFLAGS)
$(BUILD)/tests/exec/%.o: LOCAL += $(EXEC_CFLAGS)
$(BUILD)/tests/bench/%.o: LOCAL += $(EXEC_CFLAGS)

# Version, revision and place of the data: only the files that name them are built again for them.
CONFIG := -DFSDP_VERSION='"$(VERSION)"' -DFSDP_DATA_DIR='"$(PREFIX)/share/fsdp"' \
          -DFSDP_GIT_REVISION='"$(or $(shell git rev-parse --short HEAD 2>/dev/null),unknown)"'
CONFIG_OBJ := $(call objects,$(shell \
          grep -lE 'FSDP_(VERSION|DATA_DIR|GIT_REVISION)' $(ALL_SRC) /dev/null))
$(CONFIG_OBJ): LOCAL += $(CONFIG)
$(CONFIG_OBJ): $(BUILD)/config
$(BUILD)/config: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(CONFIG) | cmp -s - $@ || printf '%s\n' $(CONFIG) >$@

$(BUILD)/%.o: %.c Makefile $(if $(SIM_CFLAGS),,no-libraries)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(COMPILE) -c $< -o $@

no-libraries:
	@echo "make: pkg-config finds no glib-2.0 and json-glib-1.0; 'make deps' installs them" >&2
	@exit 1

-include $(patsubst %.o,%.d,$(call objects,$(ALL_SRC)))

# ---- link ----

$(BUILD)/libsim.a: $(call objects,$(SIM_SRC))
$(BUILD)/libreports.a: $(call objects,$(REPORTS_SRC))
$(BUILD)/libexec.a: $(call objects,$(EXEC_SRC))
$(BUILD)/lib%.a:
	@rm -f $@
	$(call say,ar)
	$(Q)$(AR) qcs $@ $^

PLAN_LINK = $(CC) $(OPTIMIZE) $(LDFLAGS) $(filter %.o,$^) \
            -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(STORE_LIBS) $(SIM_LIBS)
RUN_LINK  = $(PLAN_LINK) $(EXEC_LIBS)

$(BUILD)/fsdp-plan: $(BUILD)/sim/plan_main.o $(PLAN_LIB)
	$(call say,link)
	$(Q)$(PLAN_LINK) -o $@
$(BUILD)/fsdp-report: $(BUILD)/reports/report_main.o $(PLAN_LIB)
	$(call say,link)
	$(Q)$(PLAN_LINK) -o $@
$(BUILD)/fsdp-run: $(BUILD)/exec/run_main.o $(RUN_LIB)
	$(call say,link)
	$(Q)$(RUN_LINK) -o $@

# Tests of sim/ and reports/ need neither MPI nor a BLAS.
FLOORS     := $(FLOORS_SRC:%.c=$(BUILD)/%)
PLAN_TESTS := $(filter $(BUILD)/tests/sim/% $(BUILD)/tests/reports/%,$(TESTS)) $(FLOORS)
$(PLAN_TESTS): %: %.o $(PLAN_LIB)
	$(call say,link)
	$(Q)$(PLAN_LINK) $(CHECK_LIBS) -o $@
$(filter-out $(PLAN_TESTS),$(TESTS) $(BENCHES)): %: %.o $(RUN_LIB)
	$(call say,link)
	$(Q)$(RUN_LINK) $(CHECK_LIBS) -o $@

tests: $(TESTS)
benches: $(BENCHES)

include tests/cudasim/cudasim.mk exec/cuda/cuda.mk

# ---- jobs ----

deps: ## install the packages that building, testing and linting need
	scripts/deps.sh

demo: deps ## plan, train and compare a tiny model on this machine (minutes)
	$(MAKE) all
	scripts/demo.sh

# Linked with what they need alone: the rest is twice as much to build.
TSAN := BUILD=build/tsan RUN_LIB=build/tsan/libthreads.a \
        $(addprefix build/tsan/tests/exec/,test_comm_queue test_runtime test_watchdog)
THREADS_SRC := $(filter sim/base/% sim/input/% sim/layout/% sim/program/% exec/base/% exec/comm/% \
                 exec/device/% %/op_number.c %/runtime.c %/stall.c %/watchdog.c,\
                 $(SIM_SRC) $(EXEC_SRC))
$(BUILD)/libthreads.a: $(call objects,$(THREADS_SRC))

# Libraries may have been installed a line before, so the rest is another make's.
check: deps ## every test, under ASan and UBSan, and the threads under TSan
	$(MAKE) BUILD=build/asan all tests
	$(MAKE) build/tests/sim/test_summary build/tests/sim/test_summary_memory benches
	$(MAKE) $(TSAN)
	$(MAKE) cudasim
	$(MAKE) check-nvcc
	scripts/check.sh cudasim mpi e2e unit tsan

check-all: check ## beside all of check, what takes long: every pair of features, every wait, many schedules
	SEEDS=50 scripts/check.sh all cudasim

check-unit check-mpi check-e2e: ## one part of it
	$(MAKE) BUILD=build/asan all tests
	$(MAKE) build/tests/sim/test_summary build/tests/sim/test_summary_memory benches
	scripts/check.sh $(@:check-%=%)

check-tsan:
	$(MAKE) $(TSAN)
	scripts/check.sh tsan

lint: ## format, include floors, lengths, shell scripts
	scripts/lint.sh

bench: ## medians of the kernels, collectives and searches, and the machine
	$(MAKE) all benches
	scripts/bench.sh

bench-peers: ## tokens/s beside PyTorch's, where python3 (or PYTHON) has it
	$(MAKE) all build/tests/bench/bench_executor
	scripts/bench_peers.sh

# Instructions that every x86-64 server has had for ten years.
BUNDLE_ARCH := x86-64-v3
bundle: ## build/bundle, a folder that runs on other x86-64 Linuxes with nothing installed (CUDA=1)
	$(MAKE) BUILD=build/portable ARCH=$(BUNDLE_ARCH) \
	    LDFLAGS='-Wl,--disable-new-dtags,-rpath,\$$$$ORIGIN/../lib' all $(if $(CUDA),gpu-tests)
	scripts/bundle.sh build/portable build/bundle

check-bundle: bundle ## that folder, where there is nothing else but a C library and a shell
	tests/bundle/run.sh build/bundle

install: all ## into PREFIX (DESTDIR is honoured): programs, models, topologies
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/fsdp
	install $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	cp -R models topologies $(DESTDIR)$(PREFIX)/share/fsdp

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9 -]*\):.*## \(.*\)/\1\t\2/p' Makefile tests/cudasim/cudasim.mk exec/cuda/cuda.mk | expand -t 34
	@echo "Variables: BUILD=$(BUILD) (build, build/asan, build/tsan) PREFIX=$(PREFIX) ARCH=$(ARCH) CUDA=1 CUDA_HOME=$(CUDA_HOME) V=1 CC CFLAGS LDFLAGS"
