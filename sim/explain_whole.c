#include "sim/explain_whole.h"

#include "sim/base/text.h"
#include "sim/cost/framework.h"
#include "sim/formula.h"

/* Of a rank, by the width of what is whole: 16 bits and fp32, in which checkpoints of Hugging Face
 * are loaded unless told otherwise. */
enum { WIDTH_16, WIDTH_FP32, NUM_WIDTHS };

typedef struct {
    guint64 whole[NUM_WIDTHS]; /* its stage, of each matrix the part of its tp position */
    guint64 load[NUM_WIDTHS];  /* that beside the process, before anything is sharded */
    guint64 save[NUM_WIDTHS];  /* that beside the state: a full state dict on the GPU; all 0 where
                                  parameters are not sharded */
    guint64 foreach;           /* state, and what the optimiser's kernels leave in memory */
    guint ranks;               /* of a node */
} Whole;

/* A multi-tensor optimiser writes sqrt(v) of all parameters before it divides by it (PyTorch,
 * torch/optim/adamw.py, _multi_tensor_adamw): 4 bytes a parameter of the shard, half the moments.
 */
static Whole whole_of(const Plan *plan, const Program *program)
{
    const guint64 *term = plan->prediction.memory_bytes;
    const guint64 parameters = formula_parameters(program);
    const guint64 state = term[TERM_PARAMETERS] + term[TERM_GRADIENTS] + term[TERM_MASTER] +
                          term[TERM_OPTIMIZER] + term[TERM_FRAMEWORK];
    const guint moments = optimizer_moments(plan->workload.optimizer);
    const Strategy strategy = plan->sharding.strategy;
    const gboolean sharded = strategy != STRATEGY_NO_SHARD &&
                             strategy != STRATEGY_SHARD_OPTIMIZER &&
                             formula_shard_ranks(plan, FALSE) > 1;
    Whole of = {
        .whole = {2 * parameters, 4 * parameters},
        .foreach = state + (moments == 2 ? term[TERM_OPTIMIZER] / 2 : 0),
        .ranks = MIN(plan->ranks_per_node, plan->gpus),
    };

    for (guint w = 0; w < NUM_WIDTHS; w++) {
        of.load[w] = of.whole[w] + term[TERM_FRAMEWORK];
        of.save[w] = sharded ? of.whole[w] + state : 0;
    }
    return of;
}

/* ---- text ---- */

static void print_widths(const char *when, const guint64 bytes[NUM_WIDTHS], guint64 limit,
                         const char *instead)
{
    g_autofree char *narrow = bytes_text(bytes[WIDTH_16]);
    g_autofree char *wide = bytes_text(bytes[WIDTH_FP32]);
    const char *fits = bytes[WIDTH_FP32] <= limit ? ""
                       : bytes[WIDTH_16] > limit  ? ": neither fits"
                                                  : ": fp32 does not fit";

    g_print("  %-26s %s in 16 bits, %s in fp32%s%s%s\n", when, narrow, wide, fits,
            *fits == '\0' ? "" : ", ", *fits == '\0' ? "" : instead);
}

static void print_host(const Whole *of, guint64 has)
{
    g_autofree char *each = bytes_text(of->whole[WIDTH_16]);
    g_autofree char *narrow = bytes_text(of->ranks * of->whole[WIDTH_16]);
    g_autofree char *wide = bytes_text(of->ranks * of->whole[WIDTH_FP32]);
    g_autofree char *room = bytes_text(has);

    g_print("  %-26s %u ranks x %s = %s in 16 bits, %s in fp32%s%s%s", "load, on a node's host",
            of->ranks, each, narrow, wide, has > 0 ? " of " : "", has > 0 ? room : "",
            has > 0 && of->ranks * of->whole[WIDTH_FP32] > has ? ": does not fit" : "");
    g_print("; %s where one rank loads it\n", each);
}

void explain_whole_print(const Plan *plan, const ProgramSet *set)
{
    const guint64 limit = plan->prediction.memory_limit;

    if (!framework_is_foreign(plan->framework))
        return;
    const Whole of = whole_of(plan, formula_program(plan, set));
    g_autofree char *foreach = bytes_text(of.foreach);

    g_print(
        "\nwhere a rank has its whole part of the model for a time, which is not in the figures "
        "above (fsdp-run never has it)\n");
    print_widths("load, before sharding", of.load, limit, "make it on the meta device or the host");
    print_host(&of, plan->topology->cpu_memory_bytes);
    if (of.save[WIDTH_16] > 0)
        print_widths("save of a full state dict", of.save, limit,
                     "save shards, or gather on the host");
    g_print("  %-26s %s%s\n", "optimiser by foreach", foreach,
            of.foreach > limit ? ": does not fit, take its fused kernel"
                               : ": state, and an fp32 copy of the shard");
}

/* ---- JSON ---- */

static void add_widths(JsonObject *object, const char *name, const guint64 bytes[NUM_WIDTHS])
{
    g_autofree char *narrow = g_strconcat(name, "_16_bytes", NULL);
    g_autofree char *wide = g_strconcat(name, "_fp32_bytes", NULL);

    json_object_set_int_member(object, narrow, (gint64)bytes[WIDTH_16]);
    json_object_set_int_member(object, wide, (gint64)bytes[WIDTH_FP32]);
}

void explain_whole_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer)
{
    if (!framework_is_foreign(plan->framework))
        return;
    const Whole of = whole_of(plan, formula_program(plan, set));
    JsonObject *object = json_object_new();

    add_widths(object, "whole", of.whole);
    add_widths(object, "load", of.load);
    if (of.save[WIDTH_16] > 0)
        add_widths(object, "save", of.save);
    json_object_set_int_member(object, "foreach_bytes", (gint64)of.foreach);
    json_object_set_int_member(object, "ranks", of.ranks);
    json_object_set_object_member(answer, "whole_model", object);
}
