/* How fsdp-run's processes come to be: joined to a job that mpirun or srun started, alone, or
 * started from here. */
#pragma once

#include <glib.h>

typedef enum { LAUNCH_BY_HAND, LAUNCH_MPIRUN, LAUNCH_SRUN } LaunchKind;

typedef struct {
    LaunchKind kind;
    guint rank, size; /* by hand: 0 of 1 */
    guint local_rank; /* among those of this machine */
} LaunchEnvironment;

/* Reads from the environment how this process was started.  OMPI_COMM_WORLD_* (mpirun, also inside
 * a Slurm allocation) goes before SLURM_STEP_* (srun with more than one task); neither: by hand.
 * Refuses (ERROR_INPUT) what can't become one job: another MPI's launcher, srun without PMIx; even
 * then @launch->rank is set where it is known, so that one rank can speak for all. */
gboolean launch_environment(LaunchEnvironment *launch, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Refuses (ERROR_INPUT) a job of another size than the plan's @ranks.  By hand any will do: one
 * rank runs in this process without MPI, more are started with launch_ranks(). */
gboolean launch_check_ranks(const LaunchEnvironment *launch, guint ranks,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The first thing a rank that mpirun or srun started calls (by hand: nothing to do but the
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
