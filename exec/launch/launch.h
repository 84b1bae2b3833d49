/* How fsdp-run's processes come to be: joined to a job that mpirun, srun or another launcher
 * started, alone, or started from here. */
#pragma once

#include <glib.h>

typedef enum { LAUNCH_BY_HAND, LAUNCH_MPIRUN, LAUNCH_SRUN, LAUNCH_VARIABLES } LaunchKind;

typedef struct {
    LaunchKind kind;
    guint rank, size; /* by hand: 0 of 1 */
    guint local_rank; /* among those of this machine */

    /* Ranks find each other where rank 0 listens, without MPI (exec/comm/comm_tcp.h). */
    gboolean meets;
    char host[256]; /* of rank 0 */
    guint port;
    int listener; /* of rank 0: a socket that listens there already; -1: none */
} LaunchEnvironment;

/* Reads from the environment how this process was started.  In this order:
 *   OMPI_COMM_WORLD_RANK, _SIZE       mpirun, also inside a Slurm allocation
 *   RANK, WORLD_SIZE above 1          torchrun, or what sets its variables: LOCAL_RANK, MASTER_ADDR
 *                                     and MASTER_PORT too
 *   SLURM_PROCID, SLURM_STEP_NUM_TASKS above 1     srun: by MPI where it has PMIx, else rank 0
 *                                     listens on the first host of SLURM_STEP_NODELIST (or _JOB_;
 *                                     or at SLURM_LAUNCH_NODE_IPADDR) unless MASTER_ADDR says
 *                                     another, at MASTER_PORT or one that SLURM_JOB_ID gives
 * and otherwise by hand.  torchrun's own store listens at MASTER_PORT where it sets
 * TORCHELASTIC_USE_AGENT_STORE: then rank 0 takes the port after it.
 * Refuses (ERROR_INPUT) what can't become one job, as another MPI's launcher; even then
 * @launch->rank is set where it is known, so that one rank can speak for all. */
gboolean launch_environment(LaunchEnvironment *launch, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Refuses (ERROR_INPUT) a job whose ranks can't find each other by MPI. */
gboolean launch_check_mpi(const LaunchEnvironment *launch,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Refuses (ERROR_INPUT) a job of another size than the plan's @ranks.  By hand any will do: one
 * rank runs in this process without MPI, more are started with launch_ranks(). */
gboolean launch_check_ranks(const LaunchEnvironment *launch, guint ranks,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The first thing a rank that a launcher started calls (by hand: nothing to do but the
 * signals).  Installs process_install_signals(), binds the rank's life to its mpirun's, and tells
 * launch_ranks() that signals may come. */
gboolean launch_rank_started(const LaunchEnvironment *launch,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Runs this program with these arguments (as main() got them, before options were taken out) as
 * @ranks ranks of @threads threads on this machine, and waits.  Returns the exit status: 0 to 4 as
 * the ranks gave it (they have said why); else 3 and @error.
 *
 * SIGINT and SIGTERM make all ranks finish their step (SIGUSR2 reaches each); a second SIGINT ends
 * the job.  When this process dies, so does the job.  Ranks read no input; what they print is
 * passed on. */
int launch_ranks(int argc, char **argv, guint ranks, guint threads, GError **error);

/* Whether launch_ranks() can: there is an mpirun. */
gboolean launch_has_mpirun(void);

/* @environment (taken) with what a rank needs beside its launcher's variables. */
char **launch_rank_environment(char **environment, guint ranks, guint threads);
