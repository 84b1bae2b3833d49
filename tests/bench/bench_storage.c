/* bench_storage [FOLDER]: a rank's file in FOLDER (default /var/tmp).  What copies to and from it
 * reach beside plain reads and writes of as many bytes, one after the other past the page cache;
 * and what a step gains where they run beside it.  Turn by turn in one run: the disk may be others'
 * too. */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include "tests/bench/bench.h"
#include "tests/bench/bench_plan.h"

#include "exec/run/block_io.h"
#include "exec/run/parameters.h"
#include "exec/run/storage.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 128 << 20, RUNS = 7, STEPS = 3, TURNS = 7, BATCH = 2, SEQ = 128 };

/* ---- bandwidth ---- */

static int open_plain(const char *folder)
{
    g_autofree char *path = g_build_filename(folder, "fsdp-bench-XXXXXX", NULL);
    const int file = g_mkstemp_full(path, O_RDWR | O_CLOEXEC | O_DIRECT, 0600);

    if (file < 0 || g_unlink(path) != 0 || posix_fallocate(file, 0, BYTES) != 0)
        g_error("%s: no file of %d bytes past the page cache can be made there", folder, BYTES);
    return file;
}

static double plain_seconds(int file, guint8 *memory, gboolean write)
{
    const double begin_s = clock_s();

    for (off_t at = 0; at < BYTES; at += REQUEST_BYTES)
        if ((write ? pwrite(file, memory, REQUEST_BYTES, at)
                   : pread(file, memory, REQUEST_BYTES, at)) != REQUEST_BYTES)
            g_error("a plain %s failed", write ? "write" : "read");
    return clock_s() - begin_s;
}

static double copy_seconds(Storage *storage, guint8 *memory, gboolean write)
{
    guint8 *file = storage_base(storage);
    const StorageCopy copy = {
        .to = write ? file : memory, .from = write ? memory : file, .bytes = BYTES};
    g_autoptr(GError) error = NULL;
    const double begin_s = clock_s();

    if (!storage_copy(storage, &copy, &error))
        g_error("%s", error->message);
    return clock_s() - begin_s;
}

static void bench_bandwidth(const char *folder)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Device) device = device_open(DEVICE_CPU, 1, &error);
    g_autoptr(Storage) storage = storage_open(folder, BYTES, device, &error);
    const int plain = open_plain(folder);
    guint8 *memory = aligned_alloc(BLOCK_BYTES, BYTES);

    if (storage == NULL)
        g_error("%s", error->message);
    memset(memory, 1, BYTES);
    for (gint write = 1; write >= 0; write--) {
        const char *what = write ? "write" : "read";
        g_autofree char *names[] = {g_strdup_printf("%s, plain", what),
                                    g_strdup_printf("%s, copies of the nvme tier", what),
                                    g_strdup_printf("%s, ratio", what)};
        double rate[3][RUNS];

        for (gint i = -1; i < RUNS; i++) { /* the first writes where nothing was */
            const double plain_s = plain_seconds(plain, memory, write);
            const double copy_s = copy_seconds(storage, memory, write);

            if (i < 0)
                continue;
            rate[0][i] = BYTES / plain_s / 1e6;
            rate[1][i] = BYTES / copy_s / 1e6;
            rate[2][i] = plain_s / copy_s;
        }
        for (guint k = 0; k < 3; k++) {
            bench_print(names[k], k < 2 ? "MB/s" : "x", rate[k], RUNS);
            g_free(g_steal_pointer(&names[k]));
        }
    }
    printf("(%s)\n", storage_text(storage));
    free(memory);
    close(plain);
}

/* ---- a step ---- */

static Plan *make_plan(void)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(GError) error = NULL;
    g_autoptr(Topology) localhost = topology_load("localhost", topologies, &error);

    if (localhost == NULL)
        g_error("%s", error->message);
    g_autofree char *without = topology_print(localhost);
    g_autofree char *text = g_strconcat(
        without, "[memory nvme]\ncapacity = 1 TB\nbandwidth = 1 GB/s\nlatency = 100 us\n", NULL);
    g_autoptr(Topology) topology = topology_parse(text, "localhost", topologies, &error);
    if (topology == NULL)
        g_error("%s", error->message);
    return bench_plan(topology, BATCH, SEQ, TIER_NVME, 1);
}

/* Of several in a row, with what the last one leaves to be written. */
static double step_seconds(Interpreter *interpreter)
{
    g_autoptr(GError) error = NULL;
    const double begin_s = clock_s();
    gboolean ok = TRUE;

    for (guint i = 0; ok && i < STEPS; i++)
        ok = interpreter_step(interpreter, FALSE, &error);
    if (!ok || !interpreter_drain(interpreter, &error))
        g_error("%s", error->message);
    return (clock_s() - begin_s) / STEPS;
}

static void bench_step(const char *folder)
{
    const RuntimeOptions options = {.transport = "self", .threads = 1, .device = DEVICE_CPU};
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = make_plan();
    g_autoptr(ProgramSet) set = plan_compile(plan, &error);
    g_autoptr(Runtime) runtime = runtime_open(&options, &error);
    Interpreter *interpreter[2] = {NULL, NULL};
    double step_ms[2][TURNS], ratio[TURNS];

    for (guint k = 0; k < 2; k++) {
        const InterpreterOptions way = {.nvme_folder = folder, .no_overlap = k == 1};

        interpreter[k] = runtime == NULL ? NULL : interpreter_new_with(runtime, set, &way, &error);
        if (interpreter[k] == NULL)
            g_error("%s", error->message);
        parameters_init(interpreter[k], plan->model, 1);
    }
    for (gint i = -1; i < TURNS; i++) {
        const guint turn = (guint)MAX(i, 0);

        for (guint k = 0; k < 2; k++)
            step_ms[k][turn] = step_seconds(interpreter[k]) * 1e3;
        ratio[turn] = step_ms[1][turn] / step_ms[0][turn];
    }
    printf("%s, %u x %u tokens, fp32, 1 rank, 1 thread, moments in a file\n", plan->model->name,
           BATCH, SEQ);
    bench_print("step, copies beside it", "ms", step_ms[0], TURNS);
    bench_print("step, --no-overlap", "ms", step_ms[1], TURNS);
    bench_print("gained", "x", ratio, TURNS);
    for (guint k = 0; k < 2; k++)
        interpreter_free(interpreter[k]);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "/var/tmp";

    bench_bandwidth(folder);
    bench_step(folder);
    return EXIT_SUCCESS;
}
