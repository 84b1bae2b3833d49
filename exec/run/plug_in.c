#include "exec/run/plug_in.h"

#include "sim/base/error.h"

#include <dlfcn.h>
#include <string.h>

static const char FILE_NAME[] = "fsdp-cuda.so";

/* NULL when it is not installed. */
static char *find_file(void)
{
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = program == NULL ? NULL : g_path_get_dirname(program);
    char *path = folder == NULL ? NULL : g_build_filename(folder, FILE_NAME, NULL);

    if (path != NULL && !g_file_test(path, G_FILE_TEST_EXISTS)) {
        g_free(path);
        path = g_build_filename(folder, "..", "lib", "fsdp", FILE_NAME, NULL);
    }
    if (path != NULL && !g_file_test(path, G_FILE_TEST_EXISTS))
        g_clear_pointer(&path, g_free);
    return path;
}

/* The driver first: its absence is what most machines lack, and NVIDIA's libraries take a quarter
 * of a second to load. */
static gboolean has_driver(GError **error)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);

    if (driver == NULL)
        return fail(error, ERROR_RUNTIME,
                    "device \"cuda\": no GPU can be used here: there is no NVIDIA driver "
                    "(libcuda.so.1)");
    dlclose(driver);
    return TRUE;
}

static const CudaPlugIn *load(const char *path, GError **error)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        fail(error, ERROR_RUNTIME, "device \"cuda\": %s", dlerror());
        return NULL;
    }
    const CudaPlugIn *plug_in = dlsym(library, CUDA_PLUG_IN_SYMBOL);
    if (plug_in != NULL && strcmp(plug_in->version, FSDP_VERSION) == 0)
        return plug_in;
    fail(error, ERROR_RUNTIME, "device \"cuda\": %s is of version %s, not %s; build both again",
         path, plug_in == NULL ? "unknown" : plug_in->version, FSDP_VERSION);
    return NULL;
}

const CudaPlugIn *plug_in_open(guint *num_devices, GError **error)
{
    g_autofree char *path = find_file();

    if (path == NULL) {
        fail(error, ERROR_RUNTIME,
             "device \"cuda\": no %s beside fsdp-run: built without CUDA (make CUDA=1)", FILE_NAME);
        return NULL;
    }
    if (!has_driver(error))
        return NULL;
    const CudaPlugIn *plug_in = load(path, error);
    return plug_in != NULL && plug_in->probe(num_devices, error) ? plug_in : NULL;
}
