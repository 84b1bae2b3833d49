#include "tests/cudasim/grid.h"
#include "tests/cudasim/stream.h"

#define SHARED_DEFAULT ((size_t)48 << 10)
#define SHARED_MAX     ((size_t)227 << 10)

typedef struct {
    CsOp base;
    CsLaunch launch;
} LaunchOp;

/* Kernel -> bytes of dynamic shared memory that it may use beyond the default. */
static GHashTable *shared_limits;

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    cs_enter();
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > SHARED_MAX)
            return cs_leave(cudaErrorInvalidValue);
        if (shared_limits == NULL)
            shared_limits = g_hash_table_new(NULL, NULL);
        g_hash_table_insert(shared_limits, (gpointer)function, GINT_TO_POINTER(value));
    }
    return cs_leave(cudaSuccess);
}

static size_t shared_limit(const void *function)
{
    gpointer limit = shared_limits == NULL ? NULL : g_hash_table_lookup(shared_limits, function);

    return MAX(SHARED_DEFAULT, (size_t)GPOINTER_TO_INT(limit));
}

static gboolean is_valid(const CsLaunch *launch)
{
    dim3 blocks = launch->blocks, threads = launch->threads;
    size_t count = (size_t)threads.x * threads.y * threads.z;

    return blocks.x > 0 && blocks.y > 0 && blocks.z > 0 && blocks.x <= G_MAXINT32 &&
           blocks.y <= 65535 && blocks.z <= 65535 && count > 0 && count <= CS_MAX_THREADS &&
           threads.z <= 64 && launch->shared_bytes <= shared_limit(launch->function);
}

static void run(CsOp *op)
{
    cs_grid_run(&((LaunchOp *)op)->launch);
}

static void copied(CsOp *op)
{
    CsLaunch *launch = &((LaunchOp *)op)->launch;

    launch->arguments = launch->copy(launch->arguments);
}

static void dropped(CsOp *op)
{
    CsLaunch *launch = &((LaunchOp *)op)->launch;

    launch->drop(launch->arguments);
}

static const CsOpKind launch_kind = {
    .name = "kernel", .bytes = sizeof(LaunchOp), .run = run, .copied = copied, .dropped = dropped};

void cs_launch(CsLaunch launch, cudaStream_t stream)
{
    LaunchOp *op;

    cs_enter();
    if (!is_valid(&launch)) {
        cs_report(CS_MISUSE, "%s: %u x %u x %u blocks of %u x %u x %u threads, %zu bytes shared",
                  launch.name, launch.blocks.x, launch.blocks.y, launch.blocks.z, launch.threads.x,
                  launch.threads.y, launch.threads.z, launch.shared_bytes);
        launch.drop(launch.arguments);
        cs_leave(cudaErrorInvalidConfiguration);
        return;
    }
    op = (LaunchOp *)cs_op_new(&launch_kind);
    op->base.name = launch.name;
    op->launch = launch;
    cs_push(cs_stream(stream), &op->base);
    cs_leave(cudaSuccess);
}
