/* Layouts priced a second on one core: from summaries, and compiled, placed and simulated. */
#include "tests/bench/bench.h"

#include "sim/base/data_dirs.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "sim/summary/summary.h"

#include <stdlib.h>

enum { RUNS = 5 };

static SearchRequest make_request(const Model *model, const Topology *topology)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = 512,
        .global_batch = 1024,
        .recipe = &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .sharding = {.prefetch = 1,
                     .live_units = 2,
                     .keep_root = TRUE,
                     .keep_last = TRUE,
                     .accumulate_sharded = TRUE},
        .top = 10,
    };
}

static double summaries_per_s(const Plan *plan)
{
    enum { COUNT = 2000 };
    const ProgramSpec spec = plan_spec(plan);
    const SimulateContext context = plan_context(plan);
    const double start = clock_s();
    double sum = 0;

    for (guint i = 0; i < COUNT; i++)
        sum += summarise(&spec, &context).bound_s;
    g_assert(sum > 0);
    return COUNT / (clock_s() - start);
}

static double prices_per_s(Plan *plan)
{
    enum { COUNT = 10 };
    const double start = clock_s();

    for (guint i = 0; i < COUNT; i++)
        plan_price(plan);
    return COUNT / (clock_s() - start);
}

int main(void)
{
    g_autofree char *models = data_dir("models"), *topologies = data_dir("topologies");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-3.1-70b", models, &error);
    g_autoptr(Topology) topology = topology_load("dgx-h100", topologies, &error);
    double summaries[RUNS], prices[RUNS], seconds[RUNS];

    if (topology == NULL)
        g_error("%s", error->message);
    const SearchRequest request = make_request(model, topology);
    for (guint i = 0; i < RUNS; i++) {
        g_autoptr(SearchResult) result = search(&request);
        Plan *best = g_ptr_array_index(result->plans, 0);

        seconds[i] = result->seconds;
        summaries[i] = summaries_per_s(best);
        prices[i] = prices_per_s(best);
        if (i == 0)
            printf("llama-3.1-70b, 512 H100, batch 1024: %" G_GUINT64_FORMAT " candidates\n",
                   result->candidates);
    }
    bench_print("whole search", "s", seconds, RUNS);
    bench_print("layouts summarised", "1/s", summaries, RUNS);
    bench_print("layouts compiled, placed, simulated", "1/s", prices, RUNS);
    return EXIT_SUCCESS;
}
