# cb: one Makefile. `make help` explains each target. Knobs first.

CC        ?= cc
PREFIX    ?= /usr/local
V         ?= 0
VARIANT   ?=
MODEL_DIR ?= build/models
CBD_MODEL ?= $(MODEL_DIR)/SmolLM2-135M-Instruct.Q4_1.gguf
FUZZ_SECONDS ?= 60
PEERS_PYTHON ?= python3
export CBD_MODEL

ifeq ($(origin CC),default)
CC := gcc
endif

ifeq ($(VARIANT),)
OBJ := obj
BUILD := build
else
OBJ := obj/$(VARIANT)
BUILD := build/$(VARIANT)
endif

WARN := -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith \
        -Wno-sign-conversion -Werror
SAN_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
# gcc warns that ThreadSanitizer sees no order in a fence. Ours only order a store before a load (shm/lane.h);
# everything it must see is published by release and acquire. clang does not know the warning.
SAN_tsan := -fsanitize=thread -fno-omit-frame-pointer -O1 -Wno-unknown-warning-option -Wno-tsan
SAN := $(SAN_$(VARIANT))

BASE_CFLAGS := -std=c17 -D_GNU_SOURCE -I. -O2 -g $(WARN) -fPIC -fvisibility=hidden -pthread \
               -ffp-contract=off -fno-math-errno -MMD -MP $(SAN)
# Sanitized kernels: at -O3, or with -g, a file takes the compiler many minutes.
KERNEL_CFLAGS := $(if $(SAN),-O1 -g1,-O3) -mfma
LIBS := -luring -lseccomp -ljansson -lpcre2-8 -lutf8proc -lxxhash -linih -lm -pthread

ifeq ($(V),0)
Q := @
say = @printf '  %-7s %s\n' $(1) "$(2)"
else
Q :=
say =
endif

# ---- sources: a folder is a library, found by wildcard --------------------------------------------

SHM_SRC    := $(wildcard shm/*.c)
CLIENT_SRC := $(wildcard client/*.c client/text/*.c)
DAEMON_SRC := $(filter-out daemon/main.c,$(wildcard daemon/*.c daemon/*/*.c))
TOOLS_SRC  := $(filter-out tools/cbctl.c,$(wildcard tools/*.c))

# kernels/cpu: files named here are compiled once an instruction set, with -DCPU_LEVEL=<level>.
# A level with a BASE_ has products of its own and borrows the rest from that level.
CPU_LEVELS := scalar avx2 avx512vnni avx512bf16 amx amx_emulated amx512_emulated
CPU_PRODUCT_SRC := $(addprefix kernels/cpu/,$(addsuffix .c,linear mlp qkv head level))
CPU_LEVEL_SRC := $(CPU_PRODUCT_SRC) $(addprefix kernels/cpu/,$(addsuffix .c,matmul attention attention_span rmsnorm rope embed quant sample_sweep))
CPU_TILE_SRC := $(CPU_PRODUCT_SRC) $(addprefix kernels/cpu/,$(addsuffix .c,matmul_amx matmul_bf16))
KERNELS_SRC := $(filter-out $(CPU_LEVEL_SRC) $(CPU_TILE_SRC),$(wildcard kernels/*.c kernels/reference/*.c kernels/cpu/*.c))
LEVEL_scalar     := -mfma -mf16c
LEVEL_avx2       := -mavx2 -mfma -mf16c
LEVEL_avx512vnni := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c
LEVEL_avx512bf16 := $(LEVEL_avx512vnni) -mavx512bf16
LEVEL_amx        := $(LEVEL_avx512bf16) -mamx-tile -mamx-int8 -mamx-bf16
LEVEL_amx_emulated := $(LEVEL_avx2)
LEVEL_amx512_emulated := $(LEVEL_avx512bf16)
BASE_amx          := avx512vnni
BASE_amx_emulated := avx2
BASE_amx512_emulated := avx512vnni
objs = $(patsubst %.c,$(OBJ)/%.o,$(1))
level_objs = $(foreach l,$(CPU_LEVELS),$(patsubst %.c,$(OBJ)/%.$(l).o,$(if $(BASE_$(l)),$(CPU_TILE_SRC),$(CPU_LEVEL_SRC))))

SHM_LIB     := $(OBJ)/libshm.a
CLIENT_LIB  := $(OBJ)/libclientparts.a
KERNELS_LIB := $(OBJ)/libkernels.a
DAEMON_LIB  := $(OBJ)/libdaemon.a
TOOLS_LIB   := $(OBJ)/libtools.a
ALL_LIBS    := $(TOOLS_LIB) $(DAEMON_LIB) $(KERNELS_LIB) $(CLIENT_LIB) $(SHM_LIB)

# tests/<folder>/test_*.c make one program a folder; tests/programs/*.c and examples one each.
# The explorer: shm's own code, and what of the library runs in several threads, compiled against the memory model
# instead of <stdatomic.h>.
EXPLORE_CLIENT := $(addprefix client/,cancel.c ends.c held.c link.c lost.c reconnect.c record.c resend.c results.c \
                    resume.c send.c wait.c wake.c)
EXPLORE_SRC    := $(wildcard tests/explore/*.c) $(EXPLORE_CLIENT) \
                  $(addprefix shm/,arena.c geometry.c lane.c lane_client.c lane_deliver.c message.c ring.c sampling.c stop.c \
                    utf8.c)
EXPLORE_OBJS   := $(patsubst %.c,$(OBJ)/model/%.o,$(EXPLORE_SRC))
# tests/fetch brings a runtime of its own for ThreadSanitizer's hooks: it can't be linked with the other.
TEST_FOLDERS := $(filter-out $(if $(filter tsan,$(VARIANT)),fetch),\
                  $(sort $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.c)))))
TEST_PROGS   := $(addprefix $(BUILD)/tests/test_,$(TEST_FOLDERS))
UNIT_PROGS   := $(filter-out %/test_system,$(TEST_PROGS))
REPLAYED     := $(addprefix tests/data/,processors.json scheduler-traces.json memory-sizing.json)
CRASH_PROGS  := $(BUILD)/tests/cbd_crash $(BUILD)/tests/crash_client
SINGLE_PROGS := $(patsubst tests/programs/%.c,$(BUILD)/tests/%,$(wildcard tests/programs/*.c))
BENCH_PROGS  := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench_%,$(wildcard tests/bench/*.c)) $(addprefix $(BUILD)/tests/bench_,kernels ipc)
SHIMS        := $(patsubst tests/system/shim/%.c,$(BUILD)/tests/%_shim.so,$(wildcard tests/system/shim/*.c))
EXAMPLES     := $(patsubst client/examples/%.c,$(BUILD)/examples/%,$(wildcard client/examples/*.c))
FUZZ_PROGS   := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
PROGS := $(if $(wildcard daemon/main.c),$(BUILD)/cbd) $(if $(wildcard tools/cbctl.c),$(BUILD)/cbctl)
SANITIZER_OBJ := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/sanitizer/$(VARIANT).c))
CLIENT_OUT := $(if $(wildcard client/cbclient.map),$(BUILD)/libcbclient.so $(BUILD)/libcbclient.a)

.PHONY: all audit timing deps explore litmus mutants promela model demo check test bench bench-zoo bench-peers figures asan tsan fuzz fuzz-afl soak-fuzz soak soak-simulate soak-null soak-kills soak-clients soak-crashes soak-instructions format lint install uninstall help clean \
        distclean tests
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

all: $(PROGS) $(CLIENT_OUT) $(EXAMPLES) ## Build cbd, cbctl, libcbclient and the examples into build/
tests: $(TEST_PROGS) $(SINGLE_PROGS) $(BENCH_PROGS) $(BUILD)/tests/explore $(SHIMS) $(CRASH_PROGS)

# ---- libraries and programs ------------------------------------------------------------------------

$(OBJ)/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(BASE_CFLAGS) $(EXTRA_CFLAGS) $(CFLAGS) -c $< -o $@

$(OBJ)/kernels/%.o: EXTRA_CFLAGS += $(KERNEL_CFLAGS)
# The reference backend and the oracles run on one thread and its own memory: watching their loads finds nothing.
$(OBJ)/kernels/reference/%.o $(OBJ)/tests/kernels/oracle%.o $(OBJ)/tests/kernels/contract%.o: \
    EXTRA_CFLAGS += $(if $(filter tsan,$(VARIANT)),-fno-sanitize=thread)
$(OBJ)/tests/kernels/%.o: EXTRA_CFLAGS += -mfma

define level_rule
$(OBJ)/kernels/cpu/%.$(1).o: kernels/cpu/%.c Makefile
	$$(call say,CC,$$< [$(1)])
	$(Q)mkdir -p $$(@D) && $(CC) $(BASE_CFLAGS) $(KERNEL_CFLAGS) $(LEVEL_$(1)) -DCPU_LEVEL=$(1) -DCPU_LEVEL_$(1) \
	    -DCPU_BASE=$(or $(BASE_$(1)),$(1)) $(CFLAGS) -c $$< -o $$@
endef
$(foreach l,$(CPU_LEVELS),$(eval $(call level_rule,$(l))))

define archive
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $^
endef
$(SHM_LIB): $(call objs,$(SHM_SRC))
	$(archive)
$(CLIENT_LIB): $(call objs,$(CLIENT_SRC))
	$(archive)
$(KERNELS_LIB): $(call objs,$(KERNELS_SRC)) $(level_objs)
	$(archive)
$(DAEMON_LIB): $(call objs,$(DAEMON_SRC))
	$(archive)
$(TOOLS_LIB): $(call objs,$(TOOLS_SRC))
	$(archive)

define link_prog
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(SAN) -pthread $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) \
	    -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS) $(EXTRA_LIBS)
endef

$(BUILD)/cbd: $(OBJ)/daemon/main.o $(DAEMON_LIB) $(KERNELS_LIB) $(SHM_LIB)
	$(link_prog)
$(BUILD)/cbctl: EXTRA_LIBS := -lncurses -ltinfo -lmicrohttpd
$(BUILD)/cbctl: $(OBJ)/tools/cbctl.o $(TOOLS_LIB) $(CLIENT_LIB) $(SHM_LIB)
	$(link_prog)
$(BUILD)/libcbclient.so: $(call objs,$(CLIENT_SRC) $(SHM_SRC)) client/cbclient.map
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(SAN) -shared -Wl,-soname,libcbclient.so.1 -Wl,--version-script=client/cbclient.map \
	    -Wl,-z,defs $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(if $(SAN),-Wl$(comma)-z$(comma)undefs) -lpcre2-8 -lutf8proc -pthread
	$(Q)ln -sf libcbclient.so $(BUILD)/libcbclient.so.1
comma := ,
$(BUILD)/libcbclient.a: $(call objs,$(CLIENT_SRC) $(SHM_SRC))
	$(archive)
# As a user would: <cbclient.h>, and nothing else of ours.
$(OBJ)/client/examples/%.o: EXTRA_CFLAGS += -Iclient
$(BUILD)/examples/%: $(OBJ)/client/examples/%.o $(BUILD)/libcbclient.a
	$(link_prog)

$(TEST_PROGS) $(if $(filter tsan,$(VARIANT)),$(PROGS) $(EXAMPLES) $(SINGLE_PROGS) $(BENCH_PROGS) $(CRASH_PROGS)): $(SANITIZER_OBJ)

# ---- tests -----------------------------------------------------------------------------------------

TEST_UTIL := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/util.c tests/util/*.c))

define test_rule
$(BUILD)/tests/test_$(1): $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/$(1)/*.c)) $(TEST_UTIL) $(ALL_LIBS)
	$$(link_prog)
endef
$(foreach f,$(TEST_FOLDERS),$(eval $(call test_rule,$(f))))
$(BUILD)/tests/test_system: $(OBJ)/tests/crash/scene.o
$(TEST_PROGS): EXTRA_LIBS := -lcriterion

# tests/fetch: what may see a client's memory is compiled again, with a hook at each load (tests/fetch/trace.h).
TRACED_CFLAGS := $(filter-out $(SAN),$(BASE_CFLAGS)) -fno-builtin -fsanitize=thread -Wno-unknown-warning-option -Wno-tsan \
                 $(if $(findstring clang,$(CC)),-mllvm -tsan-instrument-read-before-write=1)
TRACED_SRC    := $(SHM_SRC) $(wildcard daemon/*.c daemon/sched/*.c tests/fetch/traced/*.c)
$(OBJ)/traced/%.o: %.c Makefile
	$(call say,CC,$< [traced])
	$(Q)mkdir -p $(@D) && $(CC) $(TRACED_CFLAGS) $(CFLAGS) -c $< -o $@
$(BUILD)/tests/test_fetch: $(filter-out $(OBJ)/traced/daemon/main.o,$(patsubst %.c,$(OBJ)/traced/%.o,$(TRACED_SRC))) \
    $(OBJ)/tests/daemon/peer.o
$(BUILD)/tests/test_fetch: LDFLAGS += -Wl,--wrap=memcpy,--wrap=memmove,--wrap=memcmp
$(BUILD)/tests/bench_%: $(OBJ)/tests/bench/%.o $(TEST_UTIL) $(ALL_LIBS)
	$(link_prog)
$(BUILD)/tests/bench_kernels: $(call objs,$(wildcard tests/bench/kernels/*.c)) $(KERNELS_LIB)
	$(link_prog)
# With iceoryx beside it where that is installed.
ICEORYX := $(wildcard /usr/include/iceoryx/*/iceoryx_binding_c/runtime.h)
$(OBJ)/tests/bench/ipc/iceoryx.o: EXTRA_CFLAGS += $(if $(ICEORYX),-DHAS_ICEORYX -isystem $(patsubst %/iceoryx_binding_c/runtime.h,%,$(lastword $(ICEORYX))))
$(BUILD)/tests/bench_ipc: EXTRA_LIBS := $(if $(ICEORYX),-liceoryx_binding_c)
$(BUILD)/tests/bench_ipc: $(call objs,$(wildcard tests/bench/ipc/*.c)) $(CLIENT_LIB) $(SHM_LIB)
	$(link_prog)
$(BUILD)/tests/replay: $(call objs,$(wildcard tests/replay/*.c))
$(BUILD)/tests/%: $(OBJ)/tests/programs/%.o $(TEST_UTIL) $(ALL_LIBS)
	$(link_prog)
# Preloaded into programs by system tests: never with a sanitizer, which is a heap of its own.
$(BUILD)/tests/%_shim.so: tests/system/shim/%.c Makefile
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out $(SAN) -MMD -MP,$(BASE_CFLAGS)) -fno-builtin -fvisibility=default $(CFLAGS) -shared -o $@ $<
$(OBJ)/model/%.o: %.c Makefile
	$(call say,CC,$< [model])
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out $(SAN),$(BASE_CFLAGS)) -O3 -march=x86-64-v2 -DCB_MODEL $(EXTRA_CFLAGS) $(CFLAGS) -c $< -o $@
$(OBJ)/model/client/%.o $(OBJ)/model/tests/explore/cases_library.o $(OBJ)/model/tests/explore/library.o: \
    EXTRA_CFLAGS += -include tests/explore/system.h
$(BUILD)/tests/explore: $(EXPLORE_OBJS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -o $@ $^
$(OBJ)/tests/util.o: EXTRA_CFLAGS += -Wno-missing-prototypes

# A daemon and a client that die at a store to a lane: the product, but for shm with its points. STATUS is
# for the eye only, and would drown them in points between which nothing differs.
$(OBJ)/crash/%.o: %.c Makefile
	$(call say,CC,$< [crash])
	$(Q)mkdir -p $(@D) && $(CC) $(BASE_CFLAGS) -DCB_CRASH $(CFLAGS) -c $< -o $@
$(OBJ)/libcrash.a: $(patsubst %.c,$(OBJ)/crash/%.o,$(filter-out shm/stats.c,$(SHM_SRC))) $(OBJ)/shm/stats.o $(OBJ)/tests/crash/points.o
	$(archive)
$(BUILD)/tests/cbd_crash: $(OBJ)/daemon/main.o $(DAEMON_LIB) $(KERNELS_LIB) $(OBJ)/libcrash.a
	$(link_prog)
$(BUILD)/tests/crash_client: $(OBJ)/tests/crash/client.o $(OBJ)/tests/crash/scene.o $(CLIENT_LIB) $(OBJ)/libcrash.a
	$(link_prog)

-include $(shell test -d $(OBJ) && find $(OBJ) -name '*.d' -not -path '$(OBJ)/asan/*' -not -path '$(OBJ)/tsan/*' -not -path '$(OBJ)/clang/*')

deps: ## Say which Debian packages are missing and install them (list: tools/deps.txt)
	@tools/deps.sh
model: ## Fetch the default model (98 MB, checked by sha256) unless CBD_MODEL names another
	@tools/model.sh "$(CBD_MODEL)"
demo: deps model ## Set up everything, run one daemon and four clients, show streams and figures
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD)
check: deps model ## Set up everything, build, run every test; ends with `N passed, N failed`
	@$(MAKE) --no-print-directory test
test: all tests ## Run every test of an already set-up tree
	@tests/run.sh $(BUILD) $(UNIT_PROGS) $(REPLAYED) $(filter %/test_system,$(TEST_PROGS))
bench: all tests ## Measure this machine's limits, then all parts' share of them; BENCH_QUICK=1 for less
	@tests/bench/run.sh $(BUILD)
bench-ipc: all $(BUILD)/tests/bench_ipc ## Round trips of our lanes and of other ways between processes: table, bars, CSV, a plot (two minutes)
	@mkdir -p $(BUILD)/bench && $(BUILD)/tests/bench_ipc $(if $(filter-out 0,$(BENCH_QUICK)),-q) -o $(BUILD)/bench $(BUILD)
bench-peers: all $(BUILD)/tests/bench_kernels ## Run cbd and its peers (in PEERS_PYTHON) in turn: ratios, CSV, a plot
	@$(PEERS_PYTHON) -B tests/bench/peers/run.py $(BUILD) "$(CBD_MODEL)"
figures: all $(BUILD)/tests/bench_kernels $(BUILD)/tests/bench_ipc ## bench-peers and bench-ipc, whose table and plots then go into README.md
	@$(PEERS_PYTHON) -B tests/bench/peers/run.py $(BUILD) "$(CBD_MODEL)" --readme README.md
	@$(MAKE) --no-print-directory bench-ipc; cp $(BUILD)/bench/ipc.svg tests/bench/figures/
asan: deps model ## All suites under AddressSanitizer and UndefinedBehaviourSanitizer
	@$(MAKE) --no-print-directory VARIANT=asan test
tsan: deps model ## All suites under ThreadSanitizer
	@$(MAKE) --no-print-directory VARIANT=tsan test

explore: $(BUILD)/tests/explore ## Explore shm and the library under the C11 memory model, then check that every mutant is caught
	$(BUILD)/tests/explore && $(BUILD)/tests/explore --mutants && CC=$(CC) tests/explore/mutants.sh $(EXPLORE_OBJS)
litmus: $(BUILD)/tests/litmus ## The lane's two shapes on two of this machine's cores, 10^8 times each: some seconds
	$(BUILD)/tests/litmus
mutants: all $(BUILD)/tests/test_client $(BUILD)/tests/test_shm explore promela ## Every order, fence and check that the lane rests on is taken away in turn: a test must fail
	tests/mutants/sites.sh $(BUILD)/tests/explore
	CC=$(CC) LIBS='$(LIBS) -lcriterion' tests/mutants/suite.sh tests/mutants/lost.txt $(BUILD) $(OBJ) client 'lost_lane/*'
	CC=$(CC) LIBS='$(LIBS) -lcriterion' tests/mutants/suite.sh tests/mutants/lane.txt $(BUILD) $(OBJ) shm 'lane/*' 'lane_checks/*' 'ring/*'
promela: ## Check the life cycles and wake protocols of tests/promela with spin, then that every mutant is caught
	CC=$(CC) tests/promela/run.sh
audit: all $(BUILD)/tests/audit_storm ## Put 50 bugs into the bookkeeping: its own audit must see at least 45 within 100 steps
	CC=$(CC) LIBS='$(LIBS)' tests/audit/mutants.sh $(BUILD) $(OBJ) 5
ZOO_PAIRS ?= 10
bench-zoo: all $(BUILD)/tests/test_system ## What each bad client costs the others, against one that spins: ZOO_PAIRS (10) pairs
	CB_ZOO_PAIRS=$(ZOO_PAIRS) CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --jobs 1 --filter 'zoo_cost/*'
TIMING_SAMPLES ?= 2000
timing: all $(BUILD)/tests/timing ## As root: does the time to a first token tell one user what another has cached?
	@tests/timing.sh $(BUILD) $(TIMING_SAMPLES)

# ---- fuzzing: clang's libFuzzer; corpora in tests/fuzz/corpus/<target> -------------------------------

FUZZ_CFLAGS := -std=c17 -D_GNU_SOURCE -I. -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
               -ffp-contract=off -pthread -mfma
FUZZ_SRC := $(SHM_SRC) $(CLIENT_SRC) $(DAEMON_SRC)
$(OBJ)/fuzz/%.o: %.c Makefile
	$(call say,FUZZCC,$<)
	$(Q)mkdir -p $(@D) && clang $(FUZZ_CFLAGS) -MMD -MP -c $< -o $@
$(OBJ)/fuzz/libfuzzall.a: $(patsubst %.c,$(OBJ)/fuzz/%.o,$(FUZZ_SRC))
	$(Q)rm -f $@ && ar rcs $@ $^
# Kernels parse nothing: they are linked as built for cbd.
$(BUILD)/fuzz/%: $(OBJ)/fuzz/tests/fuzz/%.o $(OBJ)/fuzz/libfuzzall.a $(KERNELS_LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && clang -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS)
fuzz: $(FUZZ_PROGS) ## Run every fuzz target for FUZZ_SECONDS (60), keeping its corpus
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_PROGS)

# The same sources under AFL++: those that hold a whole life of a lane, an intake, a message, a lost lane.
AFL_TARGETS ?= intake lane message lost
AFL_PROGS   := $(patsubst %,$(BUILD)/afl/fuzz_%,$(AFL_TARGETS))
$(OBJ)/afl/%.o: %.c Makefile
	$(call say,AFLCC,$<)
	$(Q)mkdir -p $(@D) && AFL_QUIET=1 afl-clang-fast $(filter-out -fsanitize=%,$(FUZZ_CFLAGS)) -fsanitize=address,undefined \
	    -fno-sanitize-recover=all -MMD -MP -c $< -o $@
$(OBJ)/afl/libfuzzall.a: $(patsubst %.c,$(OBJ)/afl/%.o,$(FUZZ_SRC))
	$(Q)rm -f $@ && ar rcs $@ $^
$(BUILD)/afl/%: $(OBJ)/afl/tests/fuzz/%.o $(OBJ)/afl/libfuzzall.a $(KERNELS_LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && AFL_QUIET=1 afl-clang-fast -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS)
fuzz-afl: $(AFL_PROGS) ## AFL++ (Debian: afl++) on AFL_TARGETS (intake lane message lost), FUZZ_SECONDS (60) each
	@tests/fuzz/run_afl.sh $(FUZZ_SECONDS) $(AFL_PROGS)
soak-fuzz: all $(BUILD)/tests/test_system ## Every fuzz target, AFL++, and mutators of a live lane, for ten minutes each
	@$(MAKE) --no-print-directory FUZZ_SECONDS=600 fuzz
	@$(MAKE) --no-print-directory FUZZ_SECONDS=600 fuzz-afl
	CB_MUTATOR_SECONDS=600 CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'zoo/mutators*'

SOAK_SECONDS ?= 7200
soak: all tests ## For SOAK_SECONDS (two hours) clients connect, submit, cancel, stop, die, and daemons do: nothing leaks, nobody hangs
	CB_SOAK_SECONDS=$(SOAK_SECONDS) CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'unrest/everything*'
SOAK_SEEDS ?= 0-9999
soak-simulate: $(BUILD)/tests/simulate ## Simulate the whole daemon for SOAK_SEEDS (0-9999); VARIANT=asan works too
	$(BUILD)/tests/simulate --seeds $(SOAK_SEEDS)

SOAK_REQUESTS ?= 1000000
soak-null: all $(BUILD)/tests/test_system ## Serve SOAK_REQUESTS (a million) of the null model: memory flat to the page, no wake missed
	CB_SOAK_REQUESTS=$(SOAK_REQUESTS) CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'soak/*'

SOAK_KILLS ?= 1000
soak-kills: all $(BUILD)/tests/test_system ## Kill the daemon SOAK_KILLS (1000) times under clients whose requests go on: every stream whole
	CB_KILLS=$(SOAK_KILLS) CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'kills/*'

SOAK_CLIENTS ?= 10000
soak-clients: all $(BUILD)/tests/test_system ## Kill SOAK_CLIENTS (10000) clients under load, and let others stand still
	CB_CLIENT_KILLS=$(SOAK_CLIENTS) CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'unrest/clients*'

soak-crashes: all tests ## Clients and daemons die behind each of their stores to a lane in turn
	CB_CRASH_ALL=1 CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --jobs 2 --filter 'crashes/*'

soak-instructions: all tests ## A client is killed before each instruction of submit, poll, cancel, release and close
	CB_EVERY_INSTRUCTION=1 CBD_BUILD=$(BUILD) $(BUILD)/tests/test_system --filter 'torture/*instruction'

# ---- the rest ----------------------------------------------------------------------------------------

C_FILES = $(shell git ls-files '*.c' '*.h')
PY_FILES = $(filter-out tests/bench/peers/%,$(shell git ls-files '*.py'))
format: ## Let clang-format settle the spacing of every C file
	@clang-format -i $(C_FILES)
lint: ## Spacing, manual pages, tests/faults.txt and edge-cases.txt, Python, cbclient.h as C++, and clang's warnings over the whole tree
	@clang-format --dry-run -Werror $(C_FILES)
	mandoc -T lint -W warning $(wildcard $(addsuffix /*.[1-8],shm client daemon tools))
	tests/faults.sh
	python3 -B tests/lint.py $(PY_FILES)
	clang -x c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only -include client/cbclient.h /dev/null
	$(MAKE) --no-print-directory CC=clang OBJ=obj/clang BUILD=build/clang all tests
install: all ## Install into PREFIX (default /usr/local); DESTDIR is honoured
	@tools/install.sh install "$(DESTDIR)" "$(PREFIX)" $(BUILD)
uninstall: ## Remove what install put there
	@tools/install.sh uninstall "$(DESTDIR)" "$(PREFIX)" $(BUILD)
clean: ## Remove what was built; keeps the model
	rm -rf obj && find build -mindepth 1 -maxdepth 1 -not -name models -exec rm -rf {} + 2>/dev/null || true
distclean: ## Remove everything built or fetched
	rm -rf obj build
help: ## This text
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
