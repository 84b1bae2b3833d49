# Tests on the simulated CUDA device (tests/cudasim/cudasim.h).  They need NVIDIA's headers, but no
# GPU, no driver and no nvcc.  Three kinds of build: release, where schedules are tried; checked,
# where every access is; asan.
CUDA_HOME := /usr/local/cuda
export CUDA_HOME
CUDA_HEADERS := $(and $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h), \
    $(wildcard $(addsuffix /include/nccl.h,$(CUDA_HOME) /usr/local /usr)))

OPTIMIZE_checked := -O2 -g1
INSTRUMENT := $(if $(filter checked,$(notdir $(BUILD))),-fsanitize=thread)
CUDASIM_CFLAGS := -isystem $(CUDA_HOME)/include $(if $(INSTRUMENT),-DCUDASIM_CHECK)

# Kernels have many instances, over which g++ takes minutes with more.  Locals are not 0 by luck.
CUDASIM_OPTIMIZE := $(patsubst -O1,-O0,$(patsubst -O3,-O2,$(OPTIMIZE)))
CUDASIM_CXX = $(CXX) -x c++ -std=gnu++17 -DCUDASIM -I. -MMD -MP -Wall -Wextra -Wno-unknown-pragmas \
              -Werror $(CUDASIM_OPTIMIZE) \
              -fno-strict-aliasing -ffp-contract=off -ftrivial-auto-var-init=pattern \
              $(INSTRUMENT) $(CUDASIM_CFLAGS) $(SIM_CFLAGS) $(CHECK_CFLAGS)
$(BUILD)/%.sim.o: %.cu Makefile tests/cudasim/cudasim.mk
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CUDASIM_CXX) -c $< -o $@

CUDASIM_SRC  := $(filter-out tests/cudasim/test_%,$(wildcard tests/cudasim/*.c))
CUDASIM_TEST := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/cudasim/test_*.c))
CUDA_TEST    := $(addprefix $(BUILD)/,$(basename $(wildcard tests/cuda/test_*.c tests/cuda/test_*.cu)))

# The host's code is instrumented as well, but for the simulator itself.
$(BUILD)/exec/cuda/%.o: LOCAL += $(INSTRUMENT) $(CUDASIM_CFLAGS)
$(BUILD)/tests/cuda/%.o: LOCAL += $(INSTRUMENT) $(CUDASIM_CFLAGS) $(EXEC_CFLAGS)
$(BUILD)/tests/cudasim/%.o: LOCAL += $(CUDASIM_CFLAGS)
$(BUILD)/tests/cudasim/test_%.o: LOCAL += $(INSTRUMENT)

$(BUILD)/libcudasim.a: $(call objects,$(CUDASIM_SRC))

CUDASIM_LINK = $(CXX) $(OPTIMIZE) $(LDFLAGS) $(filter %.o,$^) -Wl,--start-group \
               $(filter %.a,$^) -Wl,--end-group $(CHECK_LIBS) $(1) -lm -ldl -lrt -o $@
$(CUDASIM_TEST): %: %.o $(BUILD)/tests/cudasim/kernels.sim.o $(BUILD)/libcudasim.a
	$(call say,link)
	$(Q)$(call CUDASIM_LINK,$(SIM_LIBS))

# A cuDNN of the device: a library that is found and opened like the real one, whose calls of the
# simulator's find those of the program that opened it.
CUDASIM_CUDNN     := $(BUILD)/tests/cudasim/cudnn/libcudnn.so.9
CUDASIM_CUDNN_OBJ := $(patsubst %.c,$(BUILD)/%.pic.o,$(wildcard tests/cudasim/cudnn/*.c))
$(CUDASIM_CUDNN_OBJ): LOCAL += -fPIC
$(CUDASIM_CUDNN): $(CUDASIM_CUDNN_OBJ)
	$(call say,link)
	$(Q)$(CC) -shared $(OPTIMIZE) $(LDFLAGS) $^ -o $@
FAKE_CUDNN_TEST := $(addprefix $(BUILD)/tests/cuda/,test_cudnn test_cudnn_wrong simulated_run)
$(FAKE_CUDNN_TEST): $(CUDASIM_CUDNN)
$(FAKE_CUDNN_TEST): override LDFLAGS += -rdynamic -Wl,--disable-new-dtags \
    -Wl,-rpath,'$$ORIGIN/../cudasim/cudnn'

# A driver for the real cuDNN, where there is one, that lets it make plans without a GPU.
CUDASIM_DRIVER     := $(BUILD)/tests/cudasim/driver/libcuda.so.1
CUDASIM_DRIVER_OBJ := $(BUILD)/tests/cudasim/driver/driver.pic.o
$(CUDASIM_DRIVER_OBJ): LOCAL += -fPIC
$(CUDASIM_DRIVER): $(CUDASIM_DRIVER_OBJ)
	$(call say,link)
	$(Q)$(CC) -shared $(OPTIMIZE) $(LDFLAGS) -Wl,-soname,$(@F) $^ -o $@
$(BUILD)/tests/cuda/test_cudnn_plans: $(CUDASIM_DRIVER)

# The rest of the product is not instrumented, so the checked build takes it from the release build.
CUDA_TEST_LIB := $(BUILD)/libcudasim.a $(patsubst build/checked/%,build/%,$(RUN_LIB))

# What the tests of the CUDA device share: it, its kernels, and helpers in tests/cuda/.
CUDA_OBJ := $(call objects,$(filter-out tests/cuda/test_% tests/cuda/simulated_%,$(wildcard exec/cuda/*.c tests/cuda/*.c))) \
            $(patsubst %.cu,$(BUILD)/%.sim.o,$(filter-out tests/cuda/test_%,$(wildcard exec/cuda/*.cu tests/cuda/*.cu)))
$(patsubst %.c,$(BUILD)/%,$(wildcard tests/cuda/test_*.c)): %: %.o $(CUDA_OBJ) $(CUDA_TEST_LIB)
	$(call say,link)
	$(Q)$(call CUDASIM_LINK,$(STORE_LIBS) $(SIM_LIBS) $(EXEC_LIBS))
$(patsubst %.cu,$(BUILD)/%,$(wildcard tests/cuda/test_*.cu)): %: %.sim.o $(CUDA_OBJ) $(CUDA_TEST_LIB)
	$(call say,link)
	$(Q)$(call CUDASIM_LINK,$(STORE_LIBS) $(SIM_LIBS) $(EXEC_LIBS))

# fsdp-run on the simulated device, which takes the place of the plug-in.
SIMULATED_RUN := $(BUILD)/tests/cuda/simulated_run
$(SIMULATED_RUN): $(BUILD)/exec/run_main.o $(BUILD)/tests/cuda/simulated_plug_in.o $(CUDA_OBJ) $(CUDA_TEST_LIB)
	$(call say,link)
	$(Q)$(call CUDASIM_LINK,$(STORE_LIBS) $(SIM_LIBS) $(EXEC_LIBS))

.PHONY: check-cudasim cudasim cudasim-tests
cudasim-tests: $(CUDASIM_TEST) $(CUDA_TEST) $(SIMULATED_RUN) $(PROGRAMS)
cudasim:
ifneq ($(CUDA_HEADERS),)
	$(MAKE) BUILD=build cudasim-tests $(FLOORS_SRC:%.c=build/%)
	$(MAKE) BUILD=build/checked cudasim-tests
	$(MAKE) BUILD=build/asan cudasim-tests
endif

check-cudasim: cudasim ## the CUDA device, on a simulated one
	scripts/check.sh cudasim

-include $(patsubst %.o,%.d,$(call objects,$(CUDASIM_SRC)) $(CUDA_OBJ)) \
         $(SIMULATED_RUN:%run=%plug_in.d) $(CUDASIM_CUDNN_OBJ:.o=.d) $(CUDASIM_TEST:=.d) $(CUDA_TEST:=.d) $(BUILD)/tests/cudasim/kernels.sim.d
