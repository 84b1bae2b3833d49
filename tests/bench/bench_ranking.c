/* What bounds are worth: the first hundred candidates of five workloads in the order of their
 * bounds, beside what simulation says of each. */
#include "sim/base/parallel.h"
#include "sim/base/samples.h"
#include "sim/search/candidates.h"
#include "tests/bench/bench_plan.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOP = 100 };

static const struct {
    const char *model, *topology;
    guint gpus, batch, seq_len;
} workloads[] = {
    {"llama-3.1-8b", "dgx-h100", 16, 64, 8192},
    {"llama-3.1-70b", "dgx-h100", 64, 128, 8192},
    {"opt-175b", "dgx-a100-80gb", 248, 992, 2048},
    {"mixtral-8x7b", "dgx-h100", 64, 256, 4096},
    {"llama-3.1-8b", "pcie-8x-rtx-4090", 16, 64, 4096},
};

typedef struct {
    const SearchRequest *request;
    const Candidate *candidates;
    Plan *plans[TOP];
} Ranked;

static void price(gpointer data, guint i, guint worker)
{
    Ranked *ranked = data;

    (void)worker;
    ranked->plans[i] = plan_new();
    candidate_choose(ranked->request, &ranked->candidates[i], ranked->plans[i]);
    plan_price_quickly(ranked->plans[i]);
}

/* Those that fit: which of them is the fastest, how close bounds are, whether both have one
 * order. */
static void print_ranked(const Ranked *ranked, guint num)
{
    double bound_s[TOP], step_s[TOP], least = 0, sum = 0;
    guint fitting = 0, best = 0, place = 0;

    for (guint i = 0; i < num; i++) {
        const Plan *plan = ranked->plans[i];

        if (plan->reasons->len > 0)
            continue;
        step_s[fitting] = plan->prediction.step_seconds;
        bound_s[fitting] = ranked->candidates[i].bound_s * ranked->candidates[i].global_batch;
        least = fitting == 0 ? 1 : least;
        least = MIN(least, bound_s[fitting] / step_s[fitting]);
        sum += bound_s[fitting] / step_s[fitting];
        if (fitting == 0 || step_s[fitting] < step_s[best]) {
            best = fitting;
            place = i + 1;
        }
        fitting++;
    }
    if (fitting == 0) {
        printf("none of the first %u fits\n", num);
        return;
    }
    printf("%3u of %u fit; fastest by simulation: %.4g s, number %u by bound; bound / step mean "
           "%.3f, least %.3f; rank correlation %.3f\n",
           fitting, num, step_s[best], place, sum / fitting, least,
           samples_spearman(bound_s, step_s, fitting));
}

/* Out of their groups. */
static GArray *list_all(Candidates *found, const SearchRequest *request)
{
    GArray *listed = g_array_new(FALSE, FALSE, sizeof(Candidate));

    for (guint i = 0; i < found->groups->len; i++) {
        ChoiceGroup *group = &g_array_index(found->groups, ChoiceGroup, i);

        if (group->put_off)
            candidates_bound(found, request, group, 1);
        if (candidates_fit(found, group))
            candidates_expand(found, request, group, 1, listed);
    }
    return listed;
}

static void bench_workload(guint i)
{
    g_autofree char *models = data_dir("models"), *topologies = data_dir("topologies");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load(workloads[i].model, models, &error);
    g_autoptr(Topology) topology = topology_load(workloads[i].topology, topologies, &error);

    if (model == NULL || topology == NULL)
        g_error("%s", error->message);
    SearchRequest request = bench_request(model, topology, workloads[i].gpus, workloads[i].batch);

    request.seq_len = workloads[i].seq_len;
    g_autoptr(Candidates) found = candidates_find(&request, request.gpus);
    g_autoptr(GArray) listed = list_all(found, &request);

    g_array_sort(listed, candidate_by_bound);
    for (guint c = 0; c < listed->len;) /* with lists of layers it is another plan */
        if (g_array_index(listed, Candidate, c).partly)
            g_array_remove_index(listed, c);
        else if (++c == 8 * TOP)
            break;
    const guint walked = MIN(listed->len, 8 * TOP), num = MIN(walked, TOP);
    candidates_walk(found, &request, &g_array_index(listed, Candidate, 0), walked);
    g_array_set_size(listed, walked);
    g_array_sort(listed, candidate_by_bound);
    Ranked ranked = {.request = &request, .candidates = &g_array_index(listed, Candidate, 0)};
    printf("%s, %u of %s, batch %u x %u\n  ", workloads[i].model, workloads[i].gpus,
           workloads[i].topology, workloads[i].batch, workloads[i].seq_len);
    parallel_run(num, price, &ranked);
    print_ranked(&ranked, num);
    for (guint c = 0; c < num; c++)
        plan_free_borrowed(ranked.plans[c]); /* of the request */
}

int main(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(workloads); i++)
        bench_workload(i);
    return EXIT_SUCCESS;
}
