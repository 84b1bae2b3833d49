/* Attention by cuDNN instead of the kernels of attention*.cu: all of a program's or none of it, so
 * that no pass reads what the other implementation has left, and whoever reads a run's record knows
 * what ran. */
#include "exec/cuda/cuda_library_attention.h"

#include "sim/base/error.h"

#include <string.h>

struct CudaLibraryAttention {
    Cudnn *cudnn;
    DnnHandle handle;
    char *name;
    GPtrArray *shapes; /* CudnnAttention */
};

static void library_free(CudaLibraryAttention *library)
{
    if (library == NULL)
        return;
    if (library->shapes != NULL)
        g_ptr_array_unref(library->shapes);
    if (library->handle != NULL)
        library->cudnn->close(library->handle);
    cudnn_free(library->cudnn);
    g_free(library->name);
    g_free(library);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CudaLibraryAttention, library_free)

static CudaLibraryAttention *library_new(GError **error)
{
    g_autoptr(CudaLibraryAttention) library = g_new0(CudaLibraryAttention, 1);

    library->cudnn = cudnn_open(error);
    if (library->cudnn == NULL ||
        !cudnn_ok(library->cudnn, library->cudnn->open(&library->handle), "cudnnCreate", error))
        return NULL;
    g_autofree char *version = cudnn_version_text(library->cudnn->version);
    library->name = g_strdup_printf("cuDNN %s", version);
    library->shapes = g_ptr_array_new_with_free_func((GDestroyNotify)cudnn_attention_free);
    return g_steal_pointer(&library);
}

/* ---- which ops it can run ---- */

static gboolean can_run(const Op *op, GError **error)
{
    const guint scratch = op_attention_scratch(op->kind);
    const guint first_result = op->kind == OP_ATTENTION ? 3 : 6;

    if (op->num_operands > scratch + 1)
        return fail(error, ERROR_RUNTIME, "context parallel attention has positions");
    if (op->dtype != DTYPE_BF16 || op->dtype_out != DTYPE_BF16)
        return fail(error, ERROR_RUNTIME, "it is used for bf16, and here %s gives %s",
                    dtype_name(op->dtype), dtype_name(op->dtype_out));
    if (op_value_dim(op) != op->sizes.head_dim)
        return fail(error, ERROR_RUNTIME, "values have a width of their own");
    for (guint i = first_result; i < scratch; i++)
        if (op->operands[i].access != ACCESS_WRITE)
            return fail(error, ERROR_RUNTIME, "a result is added to what is there");
    g_assert(op_library_attention(op)); /* and so the program has its scratch */
    return TRUE;
}

static CudnnAttentionShape shape_of(const Op *op)
{
    const OpSizes *s = &op->sizes;

    return (CudnnAttentionShape){(gint64)s->batch, (gint64)s->seq, (gint64)s->heads,
                                 (gint64)s->kv_heads, (gint64)s->head_dim};
}

static const CudnnAttention *find(const CudaLibraryAttention *library, const Op *op)
{
    const CudnnAttentionShape wanted = shape_of(op);

    for (guint i = 0; i < library->shapes->len; i++) {
        const CudnnAttention *attention = library->shapes->pdata[i];

        if (memcmp(cudnn_attention_shape(attention), &wanted, sizeof wanted) == 0)
            return attention;
    }
    return NULL;
}

static gboolean add(CudaLibraryAttention *library, const Op *op, guint64 scratch_bytes,
                    GError **error)
{
    const CudnnTarget target = {.handle = library->handle};
    const CudnnAttentionShape shape = shape_of(op);

    if (!can_run(op, error))
        return FALSE;
    if (find(library, op) != NULL)
        return TRUE;
    CudnnAttention *attention =
        cudnn_attention_new(library->cudnn, &target, &shape, scratch_bytes, error);
    if (attention == NULL)
        return FALSE;
    g_ptr_array_add(library->shapes, attention);
    return cuda_attention_check(library->cudnn, library->handle, &shape, error);
}

/* ---- slots ---- */

const char *cuda_library_attention(Device *base, const GPtrArray *ops, guint64 scratch_bytes,
                                   GError **error)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    g_clear_pointer(&device->attention, library_free);
    if (ops == NULL)
        return NULL;
    g_autoptr(CudaLibraryAttention) library = library_new(error);
    if (library == NULL)
        return NULL;
    for (guint i = 0; i < ops->len; i++)
        if (!add(library, ops->pdata[i], scratch_bytes, error))
            return NULL;
    device->attention = g_steal_pointer(&library);
    return device->attention->name;
}

void cuda_library_attention_free(CudaDevice *device)
{
    g_clear_pointer(&device->attention, library_free);
}

static gboolean run(const CudaDevice *device, const Launch *launch, GError **error)
{
    const CudaLibraryAttention *library = device->attention;
    const CudnnAttention *attention = find(library, launch->op);
    void *const *of = launch->operand;
    CudnnAttentionData data;

    g_assert(attention != NULL);
    if (!cudnn_ok(library->cudnn,
                  library->cudnn->set_stream(library->handle, device->streams[launch->stream]),
                  "cudnnSetStream", error))
        return FALSE;
    if (launch->op->kind == OP_ATTENTION) {
        data = (CudnnAttentionData){
            .q = of[0], .k = of[1], .v = of[2], .o = of[3], .lse = of[4], .scratch = of[5]};
        return cudnn_attention_forward(attention, library->handle, &data, error);
    }
    data = (CudnnAttentionData){.dout = of[0],
                                .q = of[1],
                                .k = of[2],
                                .v = of[3],
                                .o = of[4],
                                .lse = of[5],
                                .dq = of[6],
                                .dk = of[7],
                                .dv = of[8],
                                .scratch = of[9]};
    return cudnn_attention_backward(attention, library->handle, &data, error);
}

gboolean cuda_run_library_attention(CudaDevice *device, const Launch *launch)
{
    g_autoptr(GError) why = NULL;

    if (device->attention == NULL)
        return FALSE;
    if (!run(device, launch, &why))
        cuda_keep_failure(device, op_kind_name(launch->op->kind), why->message);
    return TRUE;
}
