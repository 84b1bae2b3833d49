/* Where nothing fits. */
#include "sim/table_parts.h"

#include "sim/base/text.h"
#include "sim/remarks.h"
#include "sim/search/price.h"

static void print_offloaded(const Plan *plan)
{
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *step = seconds_text(plan->prediction.step_seconds);
    g_autofree char *total = bytes_text(plan->prediction.memory_total);
    g_autofree char *host = bytes_text(plan->arena_bytes[TIER_HOST]);

    g_print("Else: --offload optimizer=%s,parameters=%s fits on these: %s, %s, %s a step, %s of a "
            "GPU and %s of the host a rank.\n",
            tier_name(plan->sharding.offload.optimizer),
            tier_name(plan->sharding.offload.parameters), layout,
            strategy_name(plan->sharding.strategy), step, total, host);
}

static void print_refused(const SearchResult *result)
{
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++)
        if (result->example[v] != NULL && v != VERDICT_SLOWER && v != VERDICT_MEMORY)
            g_print("%" G_GUINT64_FORMAT " choice%s refused: %s\n", result->rejected[v],
                    result->rejected[v] == 1 ? "" : "s", result->example[v]);
}

/* It may fit where nothing else does: with state in another tier. */
static void print_today(const Plan *today)
{
    g_autofree char *layout = plan_layout_text(today);
    g_autofree char *step = seconds_text(today->prediction.step_seconds);
    g_autofree char *total = bytes_text(today->prediction.memory_total);
    g_autofree char *limit = bytes_text(today->prediction.memory_limit);

    if (today->reasons->len > 0)
        g_print("What runs today (%s) does not fit either: %s\n", layout,
                (const char *)g_ptr_array_index(today->reasons, 0));
    else
        g_print("What runs today fits: %s, %s, %s a step, %s of %s%s\n", layout,
                strategy_name(today->sharding.strategy), step, total, limit,
                plan_is_tight(today) ? " (at risk)" : "");
    table_print_remark(remark_largest(today));
}

/* On which something fits.  Where nothing is legal only the nearest were tried. */
static void print_numbers(const SearchAnswer *answer)
{
    const guint fewer = answer->fewer, more = answer->smallest;

    if (answer->result->candidates > 0 && more != 0)
        g_print("\nThe smallest number of GPUs that fits is %u (search --gpus %u).\n", more, more);
    else if (fewer != 0 && more != 0)
        g_print("\nThe nearest numbers of GPUs that fit are %u and %u (search --gpus %u).\n", fewer,
                more, fewer);
    else if (fewer != 0 || more != 0)
        g_print("\nThe nearest number of GPUs that fits is %u (search --gpus %u).\n",
                MAX(fewer, more), MAX(fewer, more));
    else if (answer->result->candidates > 0)
        g_print("\nNo number of GPUs up to %u fits%s.\n", search_most_gpus(answer->request),
                answer->request->global_batch != 0 ? " that divides the global batch" : "");
    else
        g_print("\nNor does any of the nearest numbers of GPUs make one legal that fits.\n");
}

/* Of one machine whose ranks are processes. */
static gboolean ranks_share_memory(const SearchRequest *request)
{
    return request->topology->gpu.kind == DEVICE_CPU && request->topology->nodes == 1;
}

/* Whether state in the host's memory would do can't be said. */
static void print_unknown_host(const SearchRequest *request)
{
    const Topology *topology = request->topology;
    MemoryTier host;

    if (topology->gpu.kind != DEVICE_CPU && !topology_memory(topology, TIER_HOST, &host))
        g_print("State could live on the host (--offload), but topology %s does not say what that "
                "has: cpu_memory and host_link under [node], in a file of your own.\n",
                topology->name);
}

void table_print_nothing_fits(const SearchAnswer *answer)
{
    const SearchRequest *request = answer->request;
    const SearchResult *result = answer->result;
    const Plan *offloaded = answer->offloaded;
    const gboolean legal = result->candidates > 0;
    const guint gpus = search_gpus(request);

    table_print_inputs(request, answer->searched);
    g_print("\n%s on %u GPU%s.\n", legal ? "Nothing fits" : "No layout is legal", gpus,
            gpus == 1 ? "" : "s");
    if (result->closest != NULL && result->closest->reasons->len > 0)
        g_print("The layout that needs least: %s\n",
                (const char *)g_ptr_array_index(result->closest->reasons, 0));
    if (result->closest != NULL) {
        table_print_memory(result->closest);
        table_print_remark(remark_largest(result->closest));
    }
    if (answer->today != NULL)
        print_today(answer->today);
    print_refused(result);
    print_numbers(answer);
    if (answer->smallest == 0 && search_most_gpus(request) < SEARCH_MOST_GPUS)
        g_print("The networks of %s join no more; an outer [network] does.\n",
                request->topology->name);
    if (offloaded != NULL)
        print_offloaded(offloaded);
    else
        print_unknown_host(request);
    if (legal && ranks_share_memory(request))
        g_print("Ranks of %s share this machine's memory, so that more of them hold no more: a "
                "smaller model does, or other machines (--topology).\n",
                request->topology->name);
    else if (legal)
        g_print("%s LoRA keeps less on the GPU; it is not planned here yet.\n",
                offloaded != NULL ? "Or:" : "Else:");
}
