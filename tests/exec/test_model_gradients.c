/* The gradients of a whole model's loss against differences of that loss: for each parameter, the
 * slope along its own gradient is the gradient's length. */
#include "tests/exec/layout_case.h"
#include "tests/suite.h"

enum { BATCH = 4, SEQ = 12 };

/* A Llama, a GPT-2, and a StarCoder 2: the biases of one, shared keys and rotation of the other. */
static const char *const configs[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 50, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"vocab_size\": 257, \"initializer_range\": 0.3}",
    "{\"model_type\": \"gpt2\", \"n_embd\": 16, \"n_inner\": 50, \"n_layer\": 2, \"n_head\": 4, "
    "\"n_positions\": 20, \"vocab_size\": 257, \"initializer_range\": 0.3}",
    "{\"model_type\": \"starcoder2\", \"hidden_size\": 16, \"intermediate_size\": 50, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"vocab_size\": 257, \"initializer_range\": 0.3, \"hidden_act\": \"gelu_pytorch_tanh\"}",
};

/* One parameter in the arena: its values, and its gradient's where @gradient. */
static float *values_of(LayoutRun *run, guint unit, guint param, gboolean gradient)
{
    const Program *program = interpreter_program(run->interpreter);
    const UnitRef *ref = program_unit_ref(program, unit);
    const UnitClass *class = program_unit(program, ref->unit_class);
    const gint tensor = gradient ? class->gradient : class->parameter;
    float *whole = interpreter_tensor(run->interpreter, (guint)tensor, ref->index);

    return whole + class->map->params[param].full_offset;
}

/* Of the samples of step 1; with a learning rate of 0 nothing changes. */
static double loss_of(LayoutRun *run)
{
    run->steps = 0;
    layout_step(run, FALSE);
    return run->loss[0];
}

/* Adds @scale x direction. */
static void move(float *values, const float *from, const float *direction, guint64 n, double scale)
{
    for (guint64 i = 0; i < n; i++)
        values[i] = (float)((double)from[i] + scale * (double)direction[i]);
}

static void check_param(LayoutRun *run, guint unit, guint param)
{
    const Program *program = interpreter_program(run->interpreter);
    const UnitMap *map = program_unit(program, program_unit_ref(program, unit)->unit_class)->map;
    const guint64 n = map->params[param].rows * map->params[param].cols;
    const double step = 0.004;
    g_autofree char *name = parameters_name(program, unit, param);
    float *values = values_of(run, unit, param, FALSE);
    double length = 0;

    loss_of(run);
    g_autofree float *gradient = g_memdup2(values_of(run, unit, param, TRUE), n * sizeof(float));
    g_autofree float *at = g_memdup2(values, n * sizeof(float));
    for (guint64 i = 0; i < n; i++)
        length += (double)gradient[i] * (double)gradient[i];
    length = sqrt(length);
    if (map->params[param].role == PARAM_K_BIAS &&
        (run->spec.model->features & FEATURE_ROPE) == 0) { /* softmax takes it away again */
        ck_assert_msg(length < 1e-6, "%s: %g", name, length);
        return;
    }
    ck_assert_msg(length > 1e-4, "%s: %g", name, length);
    move(values, at, gradient, n, step / length);
    const double above = loss_of(run);
    move(values, at, gradient, n, -step / length);
    const double below = loss_of(run);
    memcpy(values, at, n * sizeof(float));
    const double slope = (above - below) / (2 * step);

    ck_assert_msg(fabs(slope - length) <= 2e-3 * length + 1e-4, "%s: slope %.6g, gradient %.6g",
                  name, slope, length);
}

START_TEST(the_slope_along_every_gradient_is_its_length)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Runtime) runtime = case_runtime_alone();
    g_autoptr(Model) model = model_parse(configs[_i], "test", "test", &error);
    g_autoptr(Data) data = layout_data_new(&layout_ascii, 257, SEQ);
    const Workload workload = {
        .global_batch = BATCH, .seq_len = SEQ, .recipe = &recipe_fp32, .optimizer = OPTIMIZER_SGD};
    const Sharding sharding = {.strategy = STRATEGY_NO_SHARD, .live_units = 1};
    const ProgramSpec spec = {
        .model = model,
        .workload = &workload,
        .layout = {.size = {1, 1, 1, 1, 1}},
        .sharding = &sharding,
        .schedule = {.micro_batch = BATCH / 2, .micro_batches = 2},
        .device = DEVICE_CPU,
        .threads = 1,
    };
    const LayoutTask task = {.data = data, .seed = 3, .lr = 0};

    g_assert_no_error(error);
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);
    const Program *program = interpreter_program(run->interpreter);
    for (guint u = 0; u < program->unit_refs->len; u++) {
        const UnitClass *unit = program_unit(program, program_unit_ref(program, u)->unit_class);

        for (guint p = 0; p < unit->map->num_params; p++)
            check_param(run, u, p);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradients of models");
    TCase *tcase = tcase_create("differences");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, the_slope_along_every_gradient_is_its_length, 0,
                        G_N_ELEMENTS(configs));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
