#include "tests/cudasim/outcome.h"

#include "tests/suite.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

void ok(int status)
{
    ck_assert_int_eq(status, 0);
}

void *to_device(const void *values, gsize bytes)
{
    void *device;

    ok(cudaMalloc(&device, bytes));
    if (values != NULL)
        ok(cudaMemcpy(device, values, bytes, cudaMemcpyHostToDevice));
    return device;
}

void to_host(void *values, const void *device, gsize bytes)
{
    ok(cudaMemcpy(values, device, bytes, cudaMemcpyDeviceToHost));
}

Schedule schedule_at(int index)
{
    static const CsPolicy policies[] = {CS_FIFO, CS_LIFO};

    if (index < 2)
        return (Schedule){policies[index], CS_ASCENDING, 1};
    return (Schedule){index % 2 == 0 ? CS_RANDOM : CS_PCT, (CsOrder)(index / 2 % 3),
                      (guint64)(index / 2)};
}

static void run(Scenario scenario, int variant, Schedule schedule, int answer)
{
    int log = open("/dev/null", O_WRONLY);
    char outcome;

    if (log < 0 || dup2(log, STDERR_FILENO) < 0)
        _exit(1);
    cudasim_expect_reports();
    cudasim_reset(schedule.policy, schedule.order, schedule.seed);
    outcome = scenario(variant) ? 0 : WRONG;
    outcome |= cudasim_all_reports() > 0 ? REPORTED : 0;
    if (write(answer, &outcome, 1) != 1)
        _exit(1);
    _exit(0);
}

int outcome_of(Scenario scenario, int variant, Schedule schedule)
{
    int ends[2];
    char outcome = CRASHED;
    pid_t child;

    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        close(ends[0]);
        run(scenario, variant, schedule, ends[1]);
    }
    close(ends[1]);
    if (read(ends[0], &outcome, 1) != 1)
        outcome = CRASHED;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    return outcome;
}
