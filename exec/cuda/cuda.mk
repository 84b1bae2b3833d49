# The CUDA kernels by nvcc.  `make CUDA=1` builds them beside everything else; the tests of the
# simulated device (tests/cudasim/cudasim.mk) compile the same files without it.
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

ifeq ($(CUDA),1)
all: $(CUDA_KERNELS)
endif

.PHONY: cuda-kernels cuda-report
cuda-kernels: $(CUDA_KERNELS)
cuda-report: ## registers, accesses, tensor core instructions of the CUDA kernels; bytes and FLOPs
	CUDA_HOME=$(CUDA_HOME) scripts/cuda_report.sh

-include $(CUDA_KERNELS:.o=.d)
