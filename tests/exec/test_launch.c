/* This program is also the job it tests: `test_launch job MODE` starts ranks of itself. */
#include "exec/launch/launch.h"
#include "tests/exec/launch_job.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define END_S 5.0 /* what must be gone is gone within this */

/* ---- The job ---- */

/* Files that this process shares with others must lie in the job's folder. */
static gboolean maps_only(const char *folder)
{
    g_autofree char *maps = NULL;

    g_assert(g_file_get_contents("/proc/self/maps", &maps, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(maps, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        const gboolean shared = strstr(*line, "/dev/shm/") != NULL ||
                                strstr(*line, "/ompi.") != NULL ||
                                strstr(*line, "pmix_dstor") != NULL;
        if (shared && strstr(*line, folder) == NULL) {
            g_printerr("%s\n", *line);
            return FALSE;
        }
    }
    return TRUE;
}

/* Every rank does a step until one of them is asked to stop, as training does. */
static void loop(gboolean stubborn)
{
    const double end_s = clock_s() + JOB_LIMIT_S;

    for (int stop = 0; stop == 0;) {
        stop = clock_s() > end_s || (process_stop_requested() && !stubborn);
        MPI_Allreduce(MPI_IN_PLACE, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        g_usleep(2000);
    }
}

static void introduce(guint rank, const char *word, const char *folder)
{
    printf("rank %u pid %d mpirun %d threads %s blas %s word %s folder %s\n", rank, getpid(),
           getppid(), g_getenv("OMP_NUM_THREADS"), g_getenv("OPENBLAS_NUM_THREADS"), word, folder);
    fflush(stdout);
}

static int rank_main(const LaunchEnvironment *launch, int argc, char **argv)
{
    const char *mode = argv[2];
    g_autofree char *folder = g_path_get_dirname(g_getenv("FSDP_RUN_STARTED"));
    void *memory;
    MPI_Win window;
    int status = 0;

    if (g_str_equal(mode, "before MPI")) {
        introduce(launch->rank, "-", folder);
        g_usleep((gulong)(1e6 * JOB_LIMIT_S));
    }
    MPI_Init(NULL, NULL);
    MPI_Win_allocate_shared(1 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 1, 1 << 20);
    MPI_Barrier(MPI_COMM_WORLD);

    introduce(launch->rank, argc > 3 ? argv[3] : "-", folder);
    if (g_str_equal(mode, "loop") || g_str_equal(mode, "stubborn"))
        loop(g_str_equal(mode, "stubborn"));
    else if (g_str_equal(mode, "maps"))
        status = maps_only(folder) ? 0 : 1;
    else if (launch->rank == 1 && g_str_equal(mode, "exit"))
        _exit(atoi(argv[3]));
    else if (launch->rank == 1 && g_str_equal(mode, "abort"))
        MPI_Abort(MPI_COMM_WORLD, atoi(argv[3]));

    MPI_Win_free(&window);
    MPI_Finalize();
    return status;
}

static int job_main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    LaunchEnvironment launch;
    int status = 0;

    if (!launch_environment(&launch, &error) || !launch_check_ranks(&launch, RANKS, &error))
        status = 2;
    else if (launch.kind == LAUNCH_BY_HAND)
        status = launch_ranks(argc, argv, RANKS, THREADS, &error);
    else if (!launch_rank_started(&launch, &error))
        status = 3;
    else
        status = rank_main(&launch, argc, argv);

    if (error != NULL)
        g_printerr("test_launch: %s\n", error->message);
    return status;
}

/* ---- Starting and watching it ---- */

static Running start(const char *mode, const char *word)
{
    Running job = {0};
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    char *command[] = {program, g_strdup("job"), g_strdup(mode), g_strdup(word), NULL};
    g_auto(GStrv) environment = g_get_environ();

    /* Open MPI leaks by design. */
    environment = g_environ_setenv(environment, "ASAN_OPTIONS", "detect_leaks=0", TRUE);
    ck_assert(g_spawn_async_with_pipes(NULL, command, environment, G_SPAWN_DO_NOT_REAP_CHILD,
                                       reset_signals, NULL, &job.pid, NULL, &job.out, &job.err,
                                       NULL));
    for (guint i = 1; command[i] != NULL; i++)
        g_free(command[i]);
    return job;
}

/* Waits until all ranks have said who they are. */
static void await_ranks(Running *job)
{
    for (guint i = 0; i < RANKS; i++) {
        char line[512], threads[16], blas[16], word[64];
        guint rank;
        int pid;

        read_line(job->out, line, sizeof line);
        ck_assert_msg(sscanf(line,
                             "rank %u pid %d mpirun %d threads %15s blas %15s word %63s folder "
                             "%127s",
                             &rank, &pid, &job->mpirun, threads, blas, word, job->folder) == 7,
                      "'%s'", line);
        ck_assert_uint_lt(rank, RANKS);
        ck_assert_str_eq(threads, G_STRINGIFY(THREADS));
        ck_assert_str_eq(blas, "1");
        job->rank[rank] = pid;
    }
}

static void assert_nothing_left(const Running *job)
{
    const double end_s = clock_s() + END_S;
    gboolean alive = TRUE, folder = TRUE;

    while ((alive || folder) && clock_s() < end_s) {
        alive = is_alive(job->mpirun);
        for (guint i = 0; i < RANKS; i++)
            alive = alive || is_alive(job->rank[i]);
        folder = g_file_test(job->folder, G_FILE_TEST_EXISTS);
        g_usleep(5000);
    }
    ck_assert(!alive);
    ck_assert(!folder);
}

/* One line, of ours, and nothing of mpirun's. */
static void assert_told(const Running *job, const char *wanted)
{
    const char *newline = strchr(job->told, '\n');

    ck_assert_msg(g_str_has_prefix(job->told, "test_launch: "), "%s", job->told);
    ck_assert_msg(strstr(job->told, wanted) != NULL, "%s", job->told);
    ck_assert_msg(newline != NULL && newline[1] == '\0', "%s", job->told);
}

/* ---- Jobs that end by themselves ---- */

START_TEST(ranks_keep_to_the_folder_and_it_is_removed)
{
    Running job = start("maps", "-");

    await_ranks(&job);
    ck_assert_int_eq(finish(&job), 0);
    ck_assert_str_eq(job.told, "");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(exit_statuses_pass_through_and_nothing_is_added)
{
    static const struct {
        const char *mode, *word;
        int status;
    } ends[] = {{"exit", "1", 1}, {"exit", "2", 2}, {"exit", "4", 4}, {"abort", "3", 3}};
    Running job = start(ends[_i].mode, ends[_i].word);

    await_ranks(&job);
    ck_assert_int_eq(finish(&job), ends[_i].status);
    ck_assert_str_eq(job.told, "");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(other_statuses_become_3_and_are_told)
{
    Running job = start("exit", "77");

    await_ranks(&job);
    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "status 77");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(arguments_reach_the_ranks_as_they_are)
{
    const char *word = "two  words, 'quotes' \\ and $HOME";
    Running job = start("maps", word);
    char line[512];

    for (guint i = 0; i < RANKS; i++) {
        read_line(job.out, line, sizeof line);
        ck_assert_msg(strstr(line, word) != NULL, "%s", line);
    }
    ck_assert_int_eq(finish(&job), 0);
}
END_TEST

/* ---- Stopped ---- */

START_TEST(a_signal_to_the_starter_lets_all_ranks_finish)
{
    static const int signals[] = {SIGINT, SIGTERM};
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.pid, signals[_i]);
    ck_assert_int_eq(finish(&job), 0);
    ck_assert_str_eq(job.told, "");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(an_interrupt_before_the_ranks_are_there_waits_for_them)
{
    Running job = start("loop", "-");

    g_usleep(30000 * (gulong)_i); /* 0 may hit a process that has not come to launch_ranks() */
    kill(job.pid, SIGINT);
    const int status = finish(&job);
    ck_assert(status == 0 || status == 128 + SIGINT);
    ck_assert_str_eq(job.told, "");
}
END_TEST

START_TEST(a_second_interrupt_ends_the_job)
{
    Running job = start("stubborn", "-");

    await_ranks(&job);
    kill(job.pid, SIGINT);
    g_usleep(200000);
    ck_assert(is_alive(job.rank[0]));
    kill(job.pid, SIGINT);
    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "interrupted twice");
    assert_nothing_left(&job);
}
END_TEST

/* ---- Killed ---- */

START_TEST(a_killed_rank_ends_the_job)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.rank[_i], SIGKILL);
    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "a rank was killed by signal 9");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_killed_mpirun_ends_the_job)
{
    Running job = start(_i == 0 ? "loop" : "before MPI", "-");

    await_ranks(&job);
    kill(job.mpirun, SIGKILL);
    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "mpirun was killed by signal 9");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_killed_starter_ends_the_job)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.pid, SIGKILL);
    ck_assert_int_eq(finish(&job), 128 + SIGKILL);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(starter_and_mpirun_killed_at_once_leave_nothing)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.pid, SIGKILL);
    kill(job.mpirun, SIGKILL);
    ck_assert_int_eq(finish(&job), 128 + SIGKILL);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_folder_that_nobody_holds_is_removed_by_the_next_job)
{
    Running job = start("maps", "-");
    await_ranks(&job);
    ck_assert_int_eq(finish(&job), 0);

    /* As if all its processes had been killed at once. */
    g_autofree char *inner = g_build_filename(job.folder, "a", "b", NULL);
    ck_assert_int_eq(g_mkdir_with_parents(inner, 0700), 0);

    Running next = start("maps", "-");
    await_ranks(&next);
    ck_assert_int_eq(finish(&next), 0);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_job_that_runs_keeps_its_folder_when_another_starts)
{
    Running job = start("loop", "-");
    await_ranks(&job);

    Running other = start("maps", "-");
    await_ranks(&other);
    ck_assert_int_eq(finish(&other), 0);
    ck_assert(g_file_test(job.folder, G_FILE_TEST_IS_DIR));

    kill(job.pid, SIGINT);
    ck_assert_int_eq(finish(&job), 0);
    assert_nothing_left(&job);
}
END_TEST

/* ---- The environment ---- */

static void set_environment(const char *const *variables)
{
    static const char *const known[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "PMIX_RANK",
                                        "PMI_SIZE",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "SLURM_LOCALID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_LAUNCH_NODE_IPADDR"};

    for (guint i = 0; i < G_N_ELEMENTS(known); i++)
        g_unsetenv(known[i]);
    for (guint i = 0; variables[i] != NULL; i += 2)
        g_setenv(variables[i], variables[i + 1], TRUE);
}

#define SRUN     "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"
#define TORCHRUN "RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "1"

static const struct {
    const char *variables[19];
    LaunchKind kind;
    guint rank, size, local_rank;
    const char *host; /* NULL: they meet by MPI */
    guint port;
} good[] = {
    {.variables = {NULL}, .kind = LAUNCH_BY_HAND, .size = 1},
    {.variables = {"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "4"},
     .kind = LAUNCH_MPIRUN,
     .rank = 2,
     .size = 4},
    {.variables = {SRUN, "PMIX_RANK", "1"}, .kind = LAUNCH_SRUN, .rank = 1, .size = 2},
    /* The shell of an allocation, and mpirun inside one. */
    {.variables = {"SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"},
     .kind = LAUNCH_BY_HAND,
     .size = 1},
    {.variables = {"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8", "SLURM_STEP_NUM_TASKS",
                   "2"},
     .kind = LAUNCH_MPIRUN,
     .rank = 3,
     .size = 8},
    /* One task, and torchrun inside srun, whose own store listens at MASTER_PORT. */
    {.variables = {"RANK", "0", "WORLD_SIZE", "1"}, .kind = LAUNCH_BY_HAND, .size = 1},
    {.variables = {TORCHRUN, "MASTER_ADDR", "node7", "MASTER_PORT", "29500", SRUN},
     .kind = LAUNCH_VARIABLES,
     .rank = 5,
     .size = 8,
     .local_rank = 1,
     .host = "node7",
     .port = 29500},
    {.variables = {TORCHRUN, "MASTER_ADDR", "::1", "MASTER_PORT", "29500",
                   "TORCHELASTIC_USE_AGENT_STORE", "True"},
     .kind = LAUNCH_VARIABLES,
     .rank = 5,
     .size = 8,
     .local_rank = 1,
     .host = "::1",
     .port = 29501},
    /* 16000 + (123 * 7 + 2) % 16000 */
    {.variables = {SRUN, "SLURM_LOCALID", "1", "SLURM_JOB_ID", "123", "SLURM_STEP_ID", "2",
                   "SLURM_STEP_NODELIST", "node[07-09,12],n1", "SLURM_JOB_NODELIST", "node[01-99]"},
     .kind = LAUNCH_SRUN,
     .rank = 1,
     .size = 2,
     .local_rank = 1,
     .host = "node07",
     .port = 16863},
    {.variables = {SRUN, "SLURM_JOB_NODELIST", "a,b", "SLURM_JOB_ID", "16001"},
     .kind = LAUNCH_SRUN,
     .rank = 1,
     .size = 2,
     .host = "a",
     .port = 16007},
    {.variables = {SRUN, "SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7", "MASTER_PORT", "4000"},
     .kind = LAUNCH_SRUN,
     .rank = 1,
     .size = 2,
     .host = "10.0.0.7",
     .port = 4000},
};

START_TEST(the_environment_says_who_started_us)
{
    LaunchEnvironment launch;

    set_environment(good[_i].variables);
    ck_assert(launch_environment(&launch, NULL));
    ck_assert_int_eq(launch.kind, good[_i].kind);
    ck_assert_uint_eq(launch.rank, good[_i].rank);
    ck_assert_uint_eq(launch.size, good[_i].size);
    ck_assert_uint_eq(launch.local_rank, good[_i].local_rank);
    ck_assert_int_eq(launch.meets, good[_i].host != NULL);
    ck_assert_str_eq(launch.host, good[_i].host == NULL ? "" : good[_i].host);
    ck_assert_uint_eq(launch.port, good[_i].port);
    ck_assert_int_eq(launch.listener, -1);
}
END_TEST

static const struct {
    const char *variables[13];
    const char *told;
} bad[] = {
    {{"OMPI_COMM_WORLD_RANK", "4", "OMPI_COMM_WORLD_SIZE", "4"}, "OMPI_COMM_WORLD_RANK=4"},
    {{"OMPI_COMM_WORLD_RANK", "0"}, "OMPI_COMM_WORLD_SIZE=(unset)"},
    {{"OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "two"}, "OMPI_COMM_WORLD_SIZE=two"},
    {{"PMI_SIZE", "4"}, "PMI_SIZE=4"},
    {{"RANK", "1"}, "WORLD_SIZE=(unset)"},
    {{"WORLD_SIZE", "2"}, "RANK=(unset)"},
    {{"WORLD_SIZE", "-2"}, "WORLD_SIZE=-2"},
    {{"RANK", "2", "WORLD_SIZE", "2"}, "RANK=2"},
    {{"RANK", "1", "WORLD_SIZE", "2", "LOCAL_RANK", "0", "MASTER_ADDR", "a"}, "no MASTER_PORT"},
    {{"RANK", "1", "WORLD_SIZE", "2"}, "no LOCAL_RANK"},
    {{TORCHRUN, "MASTER_ADDR", "", "MASTER_PORT", "1"}, "MASTER_ADDR="},
    {{TORCHRUN, "MASTER_ADDR", "a", "MASTER_PORT", "65536"}, "MASTER_PORT=65536"},
    {{SRUN}, "SLURM_STEP_NODELIST"},
    {{SRUN, "SLURM_JOB_NODELIST", "node[3-1]"}, "SLURM_JOB_NODELIST in the environment: \"node[3"},
};

START_TEST(ranks_that_meet_without_mpi_need_a_device_of_their_own)
{
    static const struct {
        const char *variables[13];
        const char *told;
    } cases[] = {{{SRUN, "SLURM_JOB_NODELIST", "a,b"}, "srun --mpi=pmix -n 2"},
                 {{TORCHRUN, "MASTER_ADDR", "a", "MASTER_PORT", "1"}, "mpirun -np 8"},
                 {{SRUN, "PMIX_RANK", "1"}, NULL}};
    g_autoptr(GError) error = NULL;
    LaunchEnvironment launch;

    set_environment(cases[_i].variables);
    ck_assert(launch_environment(&launch, &error));
    ck_assert_int_eq(launch_check_mpi(&launch, &error), cases[_i].told == NULL);
    ck_assert(cases[_i].told == NULL || strstr(error->message, cases[_i].told) != NULL);
}
END_TEST

START_TEST(an_environment_that_makes_no_job_is_refused)
{
    g_autoptr(GError) error = NULL;
    LaunchEnvironment launch;

    set_environment(bad[_i].variables);
    ck_assert(!launch_environment(&launch, &error));
    ck_assert_msg(strstr(error->message, bad[_i].told) != NULL, "%s", error->message);
}
END_TEST

START_TEST(a_job_of_another_size_than_the_plan_is_refused)
{
    g_autoptr(GError) error = NULL;
    const LaunchEnvironment mpirun = {.kind = LAUNCH_MPIRUN, .size = 3};
    const LaunchEnvironment by_hand = {.kind = LAUNCH_BY_HAND, .size = 1};
    const LaunchEnvironment torchrun = {.kind = LAUNCH_VARIABLES, .size = 2};

    ck_assert(launch_check_ranks(&mpirun, 3, NULL));
    ck_assert(launch_check_ranks(&by_hand, 4, NULL));
    ck_assert(!launch_check_ranks(&mpirun, 4, &error));
    ck_assert_str_eq(error->message, "the plan has 4 ranks but mpirun started 3; type: mpirun -np "
                                     "4 fsdp-run ...");
    g_clear_error(&error);
    ck_assert(!launch_check_ranks(&torchrun, 4, &error));
    ck_assert_str_eq(error->message, "the plan has 4 ranks, and WORLD_SIZE=2");
}
END_TEST

START_TEST(without_mpirun_one_line_says_so)
{
    g_setenv("PATH", "/nonexistent", TRUE);
    Running job = start("maps", "-");

    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "mpirun is not in PATH");
}
END_TEST

START_TEST(an_mpirun_that_fails_is_told_apart_from_ranks_that_do)
{
    g_setenv("OMPI_MCA_state", "nonsense", TRUE);
    Running job = start("maps", "-");

    ck_assert_int_eq(finish(&job), 3);
    assert_told(&job, "could not start the ranks");
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("launch");
    TCase *environment = tcase_create("environment");
    TCase *job = tcase_create("job");

    tcase_add_loop_test(environment, the_environment_says_who_started_us, 0, G_N_ELEMENTS(good));
    tcase_add_loop_test(environment, an_environment_that_makes_no_job_is_refused, 0,
                        G_N_ELEMENTS(bad));
    tcase_add_loop_test(environment, ranks_that_meet_without_mpi_need_a_device_of_their_own, 0, 3);
    tcase_add_test(environment, a_job_of_another_size_than_the_plan_is_refused);

    tcase_set_timeout(job, 60);
    tcase_add_test(job, without_mpirun_one_line_says_so);
    tcase_add_test(job, an_mpirun_that_fails_is_told_apart_from_ranks_that_do);
    tcase_add_test(job, ranks_keep_to_the_folder_and_it_is_removed);
    tcase_add_test(job, arguments_reach_the_ranks_as_they_are);
    tcase_add_loop_test(job, exit_statuses_pass_through_and_nothing_is_added, 0, 4);
    tcase_add_test(job, other_statuses_become_3_and_are_told);
    tcase_add_loop_test(job, a_signal_to_the_starter_lets_all_ranks_finish, 0, 2);
    tcase_add_loop_test(job, an_interrupt_before_the_ranks_are_there_waits_for_them, 0, 8);
    tcase_add_test(job, a_second_interrupt_ends_the_job);
    tcase_add_loop_test(job, a_killed_rank_ends_the_job, 0, RANKS);
    tcase_add_loop_test(job, a_killed_mpirun_ends_the_job, 0, 2);
    tcase_add_test(job, a_killed_starter_ends_the_job);
    tcase_add_test(job, starter_and_mpirun_killed_at_once_leave_nothing);
    tcase_add_test(job, a_folder_that_nobody_holds_is_removed_by_the_next_job);
    tcase_add_test(job, a_job_that_runs_keeps_its_folder_when_another_starts);
    suite_add_tcase(suite, environment);
    suite_add_tcase(suite, job);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc > 2 && g_str_equal(argv[1], "job"))
        return job_main(argc, argv);
    return suite_run(make_suite());
}
