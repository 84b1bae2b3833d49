/* A driver without a GPU, libcuda.so.1: as much of it as cuDNN asks for when it makes a plan for a
 * GPU that isn't there.  It takes the compiled kernels and runs nothing. */
enum { SUCCESS = 0, NOT_SUPPORTED = 801, VERSION = 13000 };

static long anything;

#define TAKES(name)                                                                                \
    int name(void **object);                                                                       \
    int name(void **object)                                                                        \
    {                                                                                              \
        *object = &anything;                                                                       \
        return SUCCESS;                                                                            \
    }
#define RETURNS(name, status)                                                                      \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return status;                                                                             \
    }
#define NAMES(name)                                                                                \
    int name(int error, const char **text);                                                        \
    int name(int error, const char **text)                                                         \
    {                                                                                              \
        (void)error;                                                                               \
        *text = "the driver has no GPU";                                                           \
        return SUCCESS;                                                                            \
    }

NAMES(cuGetErrorString)
NAMES(cuGetErrorName)
TAKES(cuModuleLoadData)
TAKES(cuModuleGetFunction)
TAKES(cuLibraryLoadData)
TAKES(cuLibraryGetKernel)
TAKES(cuKernelGetFunction)
RETURNS(cuModuleUnload, SUCCESS)
RETURNS(cuLibraryUnload, SUCCESS)
RETURNS(cuKernelSetAttribute, SUCCESS)
RETURNS(cuFuncSetAttribute, SUCCESS)
RETURNS(cuInit, NOT_SUPPORTED)
RETURNS(cuCtxGetCurrent, NOT_SUPPORTED)
RETURNS(cuCtxGetDevice, NOT_SUPPORTED)
RETURNS(cuCtxGetLimit, NOT_SUPPORTED)
RETURNS(cuCtxPopCurrent, NOT_SUPPORTED)
RETURNS(cuCtxPushCurrent, NOT_SUPPORTED)
RETURNS(cuDeviceGet, NOT_SUPPORTED)
RETURNS(cuDeviceGetAttribute, NOT_SUPPORTED)
RETURNS(cuDeviceGetCount, NOT_SUPPORTED)
RETURNS(cuDevicePrimaryCtxRelease, NOT_SUPPORTED)
RETURNS(cuDevicePrimaryCtxReset, NOT_SUPPORTED)
RETURNS(cuDevicePrimaryCtxRetain, NOT_SUPPORTED)
RETURNS(cuFuncGetAttribute, NOT_SUPPORTED)
RETURNS(cuKernelGetAttribute, NOT_SUPPORTED)
RETURNS(cuLaunchCooperativeKernel, NOT_SUPPORTED)
RETURNS(cuLaunchKernel, NOT_SUPPORTED)
RETURNS(cuLaunchKernelEx, NOT_SUPPORTED)
RETURNS(cuLibraryLoadFromFile, NOT_SUPPORTED)
RETURNS(cuLinkAddData, NOT_SUPPORTED)
RETURNS(cuLinkAddData_v2, NOT_SUPPORTED)
RETURNS(cuLinkAddFile_v2, NOT_SUPPORTED)
RETURNS(cuLinkComplete, NOT_SUPPORTED)
RETURNS(cuLinkCreate, NOT_SUPPORTED)
RETURNS(cuLinkCreate_v2, NOT_SUPPORTED)
RETURNS(cuLinkDestroy, NOT_SUPPORTED)
RETURNS(cuMemcpyDtoH_v2, NOT_SUPPORTED)
RETURNS(cuModuleGetGlobal_v2, NOT_SUPPORTED)
RETURNS(cuModuleLoadDataEx, NOT_SUPPORTED)
RETURNS(cuModuleLoadFatBinary, NOT_SUPPORTED)
RETURNS(cuOccupancyMaxActiveBlocksPerMultiprocessor, NOT_SUPPORTED)
RETURNS(cuOccupancyMaxPotentialClusterSize, NOT_SUPPORTED)
RETURNS(cuStreamGetCtx, NOT_SUPPORTED)
RETURNS(cuStreamGetGreenCtx, NOT_SUPPORTED)
RETURNS(cuStreamSynchronize, NOT_SUPPORTED)
RETURNS(cuTensorMapEncodeIm2col, NOT_SUPPORTED)
RETURNS(cuTensorMapEncodeTiled, NOT_SUPPORTED)

int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}
