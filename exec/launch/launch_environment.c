/* How this process was started, as its environment says. */
#include "exec/launch/launch.h"

#include "exec/launch/launch_local.h"
#include "sim/base/error.h"
#include "sim/import/hostlist.h"

#include <string.h>

/* *value stays when the variable is unset. */
static gboolean read_count(const char *name, guint *value, GError **error)
{
    const char *text = g_getenv(name);
    guint64 number = 0;

    if (text == NULL)
        return TRUE;
    if (!g_ascii_string_to_unsigned(text, 10, 0, G_MAXINT, &number, NULL))
        return fail(error, ERROR_INPUT, "%s=%s in the environment: a count is wanted; unset it",
                    name, text);
    *value = (guint)number;
    return TRUE;
}

static gboolean read_rank(const char *rank_name, const char *size_name, LaunchEnvironment *launch,
                          GError **error)
{
    launch->rank = G_MAXUINT;
    launch->size = 0;
    if (!read_count(rank_name, &launch->rank, error) ||
        !read_count(size_name, &launch->size, error))
        return FALSE;
    if (launch->rank >= launch->size)
        return fail(error, ERROR_INPUT,
                    "%s=%s with %s=%s in the environment: set both (rank below size) or neither",
                    rank_name, g_getenv(rank_name) == NULL ? "(unset)" : g_getenv(rank_name),
                    size_name, g_getenv(size_name) == NULL ? "(unset)" : g_getenv(size_name));
    return TRUE;
}

/* *value stays when the variable is unset. */
static gboolean read_port(const char *name, guint *value, GError **error)
{
    enum { MAX_PORT = 65535 };
    const char *text = g_getenv(name);
    guint64 number = 0;

    if (text == NULL)
        return TRUE;
    if (!g_ascii_string_to_unsigned(text, 10, 1, MAX_PORT, &number, NULL))
        return fail(error, ERROR_INPUT, "%s=%s in the environment: must be a port, 1 to %d", name,
                    text, MAX_PORT);
    *value = (guint)number;
    return TRUE;
}

static gboolean set_host(LaunchEnvironment *launch, const char *name, const char *host,
                         GError **error)
{
    if (host[0] == '\0' || strlen(host) >= sizeof launch->host)
        return fail(error, ERROR_INPUT, "%s=%s in the environment: must be a host", name, host);
    g_strlcpy(launch->host, host, sizeof launch->host);
    return TRUE;
}

/* ---- torchrun, and whoever sets its variables ---- */

static gboolean has_own_store(void)
{
    return g_strcmp0(g_getenv("TORCHELASTIC_USE_AGENT_STORE"), "True") == 0;
}

static gboolean read_variables(LaunchEnvironment *launch, GError **error)
{
    static const char *const needed[] = {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    guint listener = G_MAXUINT;

    launch->kind = LAUNCH_VARIABLES;
    launch->meets = TRUE;
    if (!read_rank("RANK", "WORLD_SIZE", launch, error))
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(needed); i++)
        if (g_getenv(needed[i]) == NULL)
            return fail(error, ERROR_INPUT,
                        "RANK=%u and WORLD_SIZE=%u in the environment, but no %s: set it as well, "
                        "or unset these",
                        launch->rank, launch->size, needed[i]);
    if (!read_count("LOCAL_RANK", &launch->local_rank, error) ||
        !set_host(launch, "MASTER_ADDR", g_getenv("MASTER_ADDR"), error) ||
        !read_port("MASTER_PORT", &launch->port, error) ||
        !read_count(LAUNCH_LISTENER_VARIABLE, &listener, error))
        return FALSE;
    launch->port += has_own_store() ? 1 : 0;
    if (launch->rank == 0 && listener != G_MAXUINT)
        launch->listener = (int)listener;
    return TRUE;
}

/* ---- srun ---- */

static gboolean find_first_host(LaunchEnvironment *launch, GError **error)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
    static const char *const hosts[] = {"MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR"};

    if (g_getenv(hosts[0]) != NULL)
        return set_host(launch, hosts[0], g_getenv(hosts[0]), error);
    for (guint i = 0; i < G_N_ELEMENTS(lists); i++) {
        const char *list = g_getenv(lists[i]);

        if (list == NULL)
            continue;
        g_autoptr(GPtrArray) names = hostlist_expand(list, error);
        if (names == NULL) {
            g_prefix_error(error, "%s in the environment: ", lists[i]);
            return FALSE;
        }
        return set_host(launch, lists[i], g_ptr_array_index(names, 0), error);
    }
    if (g_getenv(hosts[1]) != NULL)
        return set_host(launch, hosts[1], g_getenv(hosts[1]), error);
    return fail(error, ERROR_INPUT,
                "srun started %u tasks without PMIx and says no host of theirs "
                "(SLURM_STEP_NODELIST): set MASTER_ADDR to that of task 0",
                launch->size);
}

/* Another one for another step of a job, below those that the system gives away. */
static guint port_of_step(guint job, guint step)
{
    enum { FIRST_PORT = 16000, NUM_PORTS = 16000, STEPS = 7 };

    return FIRST_PORT + (job * STEPS + step) % NUM_PORTS;
}

static gboolean read_srun(LaunchEnvironment *launch, GError **error)
{
    guint job = 0, step = 0;

    launch->kind = LAUNCH_SRUN;
    if (!read_rank("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", launch, error) ||
        !read_count("SLURM_LOCALID", &launch->local_rank, error))
        return FALSE;
    launch->meets = g_getenv("PMIX_RANK") == NULL;
    if (!launch->meets)
        return TRUE;
    if (!read_count("SLURM_JOB_ID", &job, error) || !read_count("SLURM_STEP_ID", &step, error))
        return FALSE;
    launch->port = port_of_step(job, step);
    return read_port("MASTER_PORT", &launch->port, error) && find_first_host(launch, error);
}

/* ---- all of them ---- */

gboolean launch_environment(LaunchEnvironment *launch, GError **error)
{
    guint tasks = 1;

    *launch = (LaunchEnvironment){.kind = LAUNCH_BY_HAND, .rank = 0, .size = 1, .listener = -1};
    if (g_getenv("OMPI_COMM_WORLD_RANK") != NULL || g_getenv("OMPI_COMM_WORLD_SIZE") != NULL) {
        launch->kind = LAUNCH_MPIRUN;
        return read_count("OMPI_COMM_WORLD_LOCAL_RANK", &launch->local_rank, error) &&
               read_rank("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch, error);
    }
    if (!read_count("WORLD_SIZE", &tasks, error))
        return FALSE;
    if (tasks > 1 || (g_getenv("RANK") != NULL && g_getenv("WORLD_SIZE") == NULL))
        return read_variables(launch, error);
    tasks = 1;
    if (!read_count("SLURM_STEP_NUM_TASKS", &tasks, error))
        return FALSE;
    if (tasks > 1)
        return read_srun(launch, error);

    tasks = 1;
    if (!read_count("PMI_SIZE", &tasks, error))
        return FALSE;
    if (tasks > 1)
        return fail(
            error, ERROR_INPUT,
            "PMI_SIZE=%u: started by the launcher of another MPI; use Open MPI's mpirun -np "
            "%u ..., srun --mpi=pmix, or no launcher",
            tasks, tasks);
    return TRUE;
}

gboolean launch_check_mpi(const LaunchEnvironment *launch, GError **error)
{
    if (!launch->meets)
        return TRUE;
    if (launch->kind == LAUNCH_SRUN)
        return fail(error, ERROR_INPUT,
                    "srun started %u tasks without PMIx, and ranks on CPUs find each other by MPI "
                    "alone; type: srun --mpi=pmix -n %u ...",
                    launch->size, launch->size);
    return fail(error, ERROR_INPUT,
                "RANK and WORLD_SIZE=%u in the environment, but ranks on CPUs find each other by "
                "MPI alone; type: mpirun -np %u ..., or unset these",
                launch->size, launch->size);
}

gboolean launch_check_ranks(const LaunchEnvironment *launch, guint ranks, GError **error)
{
    const gboolean srun = launch->kind == LAUNCH_SRUN;

    if (launch->kind == LAUNCH_BY_HAND || launch->size == ranks)
        return TRUE;
    if (launch->kind == LAUNCH_VARIABLES)
        return fail(error, ERROR_INPUT, "the plan has %u ranks, and WORLD_SIZE=%u", ranks,
                    launch->size);
    return fail(error, ERROR_INPUT,
                "the plan has %u ranks but %s started %u; type: %s %u fsdp-run ...", ranks,
                srun ? "srun" : "mpirun", launch->size, srun ? "srun --mpi=pmix -n" : "mpirun -np",
                ranks);
}
