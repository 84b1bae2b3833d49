#include "exec/cuda/cudnn_library.h"

#include "sim/base/error.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY "libcudnn.so.9"

char *cudnn_version_text(guint version)
{
    return g_strdup_printf("%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

/* Of a message in several lines the first. */
gboolean cudnn_ok(const Cudnn *cudnn, int status, const char *what, GError **error)
{
    char message[512] = "";

    if (status == 0)
        return TRUE;
    cudnn->last_error(message, sizeof message);
    message[sizeof message - 1] = '\0';
    message[strcspn(message, "\n")] = '\0';
    return fail(error, ERROR_RUNTIME, "%s: status %d of cuDNN%s%s", what, status,
                message[0] == '\0' ? "" : ": ", g_strstrip(message));
}

static gboolean find(void *library, const char *name, void *function, GError **error)
{
    void *found = dlsym(library, name);

    memcpy(function, &found, sizeof found);
    return found != NULL || fail(error, ERROR_RUNTIME, "%s has no %s", LIBRARY, name);
}

static gboolean find_all(Cudnn *cudnn, GError **error)
{
    void *library = cudnn->library;
    gsize (*version)(void) = NULL;

    if (!find(library, "cudnnGetVersion", &version, error))
        return FALSE;
    cudnn->version = (guint)version();
    if (cudnn->version < CUDNN_OLDEST) {
        g_autofree char *is = cudnn_version_text(cudnn->version);
        g_autofree char *oldest = cudnn_version_text(CUDNN_OLDEST);

        return fail(error, ERROR_RUNTIME, "%s is cuDNN %s; it takes %s", LIBRARY, is, oldest);
    }
    return find(library, "cudnnGetLastErrorString", &cudnn->last_error, error) &&
           find(library, "cudnnCreate", &cudnn->open, error) &&
           find(library, "cudnnDestroy", &cudnn->close, error) &&
           find(library, "cudnnSetStream", &cudnn->set_stream, error) &&
           find(library, "cudnnBackendCreateDescriptor", &cudnn->create, error) &&
           find(library, "cudnnBackendDestroyDescriptor", &cudnn->destroy, error) &&
           find(library, "cudnnBackendFinalize", &cudnn->finalize, error) &&
           find(library, "cudnnBackendSetAttribute", &cudnn->set, error) &&
           find(library, "cudnnBackendGetAttribute", &cudnn->get, error) &&
           find(library, "cudnnBackendExecute", &cudnn->execute, error);
}

Cudnn *cudnn_open(GError **error)
{
    g_autoptr(Cudnn) cudnn = g_new0(Cudnn, 1);

    cudnn->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (cudnn->library == NULL) {
        fail(error, ERROR_RUNTIME, "%s", dlerror());
        return NULL;
    }
    return find_all(cudnn, error) ? g_steal_pointer(&cudnn) : NULL;
}

/* The library stays: it can't be unloaded safely once it has used CUDA. */
void cudnn_free(Cudnn *cudnn)
{
    g_free(cudnn);
}
