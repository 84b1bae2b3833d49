/* Layouts priced a second on one core: from summaries, and compiled, placed and simulated. */
#include "tests/bench/bench.h"

#include "sim/search/candidates.h"
#include "sim/summary/summary.h"
#include "tests/bench/bench_plan.h"

#include <stdlib.h>

#include <sys/resource.h>
#include <time.h>

enum { RUNS = 5 };

/* Of all threads: other work on the machine doesn't count. */
static double cpu_s(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One layout again and again: all that it needs has been looked at before. */
static double known_layouts_per_s(const Plan *plan)
{
    enum { COUNT = 200000 };
    const ProgramSpec spec = plan_spec(plan);
    const SimulateContext context = plan_context(plan);
    g_autoptr(Summariser) summariser = summariser_new(&context, NULL);
    double sum = summarise(summariser, &spec, G_MAXUINT64).bound_s;
    const double start = cpu_s();

    for (guint i = 0; i < COUNT; i++)
        sum += summarise(summariser, &spec, G_MAXUINT64).bound_s;
    g_assert(sum > 0);
    return COUNT / (cpu_s() - start);
}

/* All layouts of a search, in groups that have bounds, with the looking. */
static double layouts_per_s(const SearchRequest *request)
{
    const double start = cpu_s();
    g_autoptr(Candidates) found = candidates_find(request, request->gpus);

    return (double)found->legal / (cpu_s() - start);
}

static double prices_per_s(Plan *plan)
{
    enum { COUNT = 10 };
    const double start = cpu_s();

    for (guint i = 0; i < COUNT; i++)
        plan_price(plan);
    return COUNT / (cpu_s() - start);
}

static void bench_model(const char *name, guint gpus, guint batch, guint runs)
{
    g_autofree char *models = data_dir("models"), *topologies = data_dir("topologies");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load(name, models, &error);
    g_autoptr(Topology) topology = topology_load("dgx-h100", topologies, &error);
    double known[RUNS], all[RUNS], prices[RUNS], wall[RUNS], cpu[RUNS];
    struct rusage usage;

    if (model == NULL || topology == NULL)
        g_error("%s", error->message);
    SearchRequest request = bench_request(model, topology, gpus, batch);

    request.briefly = TRUE; /* as the command's table */
    for (guint i = 0; i < runs; i++) {
        const double start = cpu_s();
        g_autoptr(SearchResult) result = search(&request);
        Plan *best = g_ptr_array_index(result->plans, 0);

        cpu[i] = cpu_s() - start;
        wall[i] = result->seconds;
        all[i] = layouts_per_s(&request);
        known[i] = known_layouts_per_s(best);
        prices[i] = prices_per_s(best);
        if (i == 0)
            printf("%s, %u H100, batch %u: %" G_GUINT64_FORMAT " candidates\n", name, gpus, batch,
                   result->candidates);
    }
    getrusage(RUSAGE_SELF, &usage);
    bench_print("whole search", "s", wall, runs);
    bench_print("its CPU time, of all cores", "s", cpu, runs);
    bench_print("layouts bounded in groups a core, all of the search", "1/s", all, runs);
    bench_print("the same layout a core, once it is known", "1/s", known, runs);
    bench_print("layouts compiled, placed, simulated a core", "1/s", prices, runs);
    printf("most memory so far: %ld MiB\n", usage.ru_maxrss / 1024);
}

int main(void)
{
    bench_model("llama-3.1-70b", 512, 1024, RUNS);
    bench_model("llama-3.1-405b", 16384, 2048, 1);
    return EXIT_SUCCESS;
}
