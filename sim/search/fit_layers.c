/* As few layers computed again as fit. */
#include "sim/search/price.h"
#include "sim/search/price_parts.h"

typedef struct {
    Plan *plan;
    ProgramSpec spec;
    guint16 *by_stage; /* what @spec points to */
} Fitting;

static Fitting fitting_of(Plan *plan, Recompute recompute, guint16 *by_stage)
{
    Fitting fitting = {plan, plan_spec(plan), by_stage};

    fitting.spec.schedule.recompute = recompute;
    fitting.spec.schedule.recompute_layers = by_stage;
    fitting.spec.schedule.micro_batches = price_most_micro_batches(plan);
    return fitting;
}

static guint most_layers(const Fitting *fitting, guint stage)
{
    return schedule_most_layers(&fitting->spec.schedule, fitting->spec.model->layers,
                                fitting->spec.layout.size[AXIS_PP], stage);
}

static gboolean fits_with(const Fitting *fitting, guint stage, guint layers)
{
    fitting->by_stage[stage] = (guint16)layers;
    g_autoptr(Program) program = program_build_unplaced(&fitting->spec, stage);

    return price_fits(fitting->plan, program, stage, layers == most_layers(fitting, stage));
}

/* Fewer layers than are there don't fit; more need less.  Bounds are close, so it takes small steps
 * first. */
static gboolean fit_stage(const Fitting *fitting, guint stage)
{
    const guint most = most_layers(fitting, stage);
    guint low = fitting->by_stage[stage], high = low, step = 1;

    while (!fits_with(fitting, stage, high)) {
        if (high == most)
            return FALSE;
        low = high + 1;
        high = MIN(high + step, most);
        step *= 2;
    }
    while (low < high) {
        const guint middle = (low + high) / 2;

        if (fits_with(fitting, stage, middle))
            high = middle;
        else
            low = middle + 1;
    }
    fitting->by_stage[stage] = (guint16)high;
    return TRUE;
}

void plan_raise_recompute(Plan *plan, Recompute recompute, Summariser *summariser, guint16 *layers)
{
    const Fitting fitting = fitting_of(plan, recompute, layers);

    for (guint s = 0; s < plan->layout.size[AXIS_PP]; s++)
        if (layers[s] < most_layers(&fitting, s) && summarise_peak_pays(&fitting.spec, s) &&
            summarise_peak(summariser, &fitting.spec, s) > plan_floor_limit(plan))
            layers[s]++;
}

gboolean plan_least_recompute(Plan *plan, Recompute recompute, const guint16 *from)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree guint16 *by_stage = g_memdup2(from, pp * sizeof *from);
    const Fitting fitting = fitting_of(plan, recompute, by_stage);

    for (guint s = 0; s < pp; s++)
        if (!fit_stage(&fitting, s))
            return FALSE;
    plan_set_recompute(plan, recompute, by_stage, pp);
    if (schedule_has_rest(&plan->schedule))
        return TRUE;
    g_ptr_array_set_size(plan->reasons, 0);
    g_ptr_array_add(plan->reasons, g_strdup("memory: fits only with all layers computed again"));
    return FALSE;
}
