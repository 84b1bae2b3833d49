# CUDA's part, a plug-in that fsdp-run opens when a plan's device is cuda: `make CUDA=1` builds it
# beside everything else, kernels by nvcc.  The tests of the simulated device
# (tests/cudasim/cudasim.mk) compile the same files without it.
NVCC       := $(CUDA_HOME)/bin/nvcc
CUDA_ARCHS := 80 90 100

# A spill is an error, like every warning.
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 -lineinfo -I. -MMD -MP $(filter-out -pthread,$(SIM_CFLAGS)) \
               -Werror all-warnings -Xcompiler -Wall,-Wextra,-fPIC \
               -Xptxas --warn-on-spills,--warning-as-error \
               $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
               -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
CUDA_KERNELS := $(patsubst %.cu,$(BUILD)/%.cuda.o,$(wildcard exec/cuda/*.cu))

$(BUILD)/%.cuda.o: %.cu Makefile exec/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,nvcc)
	$(Q)$(NVCC_COMPILE) -c $< -o $@

# What the plug-in calls of fsdp-run's it finds there when it is opened.
CUDA_HOST := $(patsubst %.c,$(BUILD)/%.pic.o,$(wildcard exec/cuda/*.c))
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lcublasLt -lnccl \
             -lstdc++ -ldl -lrt -lpthread
$(BUILD)/fsdp-run: override LDFLAGS += -rdynamic
$(BUILD)/exec/cuda/%.pic.o: LOCAL += -fPIC $(CONFIG)
$(BUILD)/%.pic.o: %.c Makefile exec/cuda/cuda.mk $(BUILD)/config
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(COMPILE) -c $< -o $@
$(BUILD)/fsdp-cuda.so: $(CUDA_HOST) $(CUDA_KERNELS)
	$(call say,link)
	$(Q)$(CC) -shared $(LDFLAGS) $^ $(CUDA_LIBS) $(SIM_LIBS) -o $@

ifeq ($(CUDA),1)
all: $(BUILD)/fsdp-cuda.so
install: install-cuda
endif
install-cuda: $(BUILD)/fsdp-cuda.so
	install -d $(DESTDIR)$(PREFIX)/lib/fsdp
	install $< $(DESTDIR)$(PREFIX)/lib/fsdp

# The tests of tests/cuda/ with NVIDIA's libraries, for a machine with a GPU (tests/gpu/run.sh).
GPU_TEST := $(patsubst tests/cuda/%.c,$(BUILD)/tests/gpu/%,\
              $(filter-out tests/cuda/test_dropped_wait% tests/cuda/test_host_waits% tests/cuda/test_cudnn_%,$(wildcard tests/cuda/test_*.c)))
$(GPU_TEST): $(BUILD)/tests/gpu/%: $(BUILD)/tests/cuda/%.o $(CUDA_HOST) $(CUDA_KERNELS) $(RUN_LIB)
	@mkdir -p $(@D)
	$(call say,link)
	$(Q)$(RUN_LINK) $(CHECK_LIBS) $(CUDA_LIBS) -o $@
gpu-tests: $(GPU_TEST) $(FLOORS)

# Every check compiles and links all of it against NVIDIA's libraries, where they are.
check-nvcc:
ifneq ($(wildcard $(NVCC)),)
	$(MAKE) BUILD=build build/fsdp-cuda.so gpu-tests
else
	@echo "SKIP the CUDA plug-in: no $(NVCC)"
endif

.PHONY: gpu-tests check-nvcc cuda-kernels cuda-report install-cuda
cuda-kernels: $(CUDA_KERNELS)
cuda-report: $(FLOORS) ## registers, accesses, tensor core instructions of the CUDA kernels; bytes and FLOPs
	CUDA_HOME=$(CUDA_HOME) scripts/cuda_report.sh

-include $(CUDA_KERNELS:.o=.d) $(CUDA_HOST:.o=.d)
