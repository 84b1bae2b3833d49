/* Steps that are simulated under other figures stand for steps that ran: what they took becomes
 * rows, with which the same step is predicted. */
#include "sim/cost/learn.h"
#include "sim/summary/summary.h"
#include "tests/sim/spec_case.h"

#include <math.h>

enum { CASES = 60 };

/* Relative: of a time whose rows have 4 digits. */
static const double DIGITS = 1e-3;

/* A case, the programs of its classes, and the seconds of their ops. */
typedef struct {
    Case choice;
    ProgramSet *set;
    Topology *topology;
    SimulateContext context;
    gboolean by_cudnn;   /* who ran attention, on a GPU */
    guint **spans;       /* by class */
    double ***durations; /* by class, segment, op */
} Trial;

static void trial_open(Trial *trial, GRand *random, Model *model)
{
    trial->choice = case_random_4d(random, model);
    trial->set = case_compile(&trial->choice);
    const guint world = layout_world(&trial->choice.layout);
    const gboolean is_cpu = trial->choice.device == DEVICE_CPU;

    trial->topology = is_cpu ? case_cpu_topology(1 + draw(random, 7), 6)
                             : case_gpu_topology((world + 3) / 4, 80000, 50000);
    trial->context = (SimulateContext){
        .topology = trial->topology,
        .ranks_per_node = is_cpu ? world : MIN(world, 4),
        .threads = is_cpu ? 1 + draw(random, 1) : 1,
    };
    trial->by_cudnn = draw(random, 1) == 1 && !is_cpu;
    trial->spans = g_new(guint *, trial->set->num_classes);
    trial->durations = g_new(double **, trial->set->num_classes);
    for (guint c = 0; c < trial->set->num_classes; c++) {
        trial->spans[c] = case_spans(trial->set->classes[c], &trial->choice);
        trial->durations[c] =
            durations_new(trial->set->classes[c], &trial->context, trial->spans[c]);
    }
}

static void trial_close(Trial *trial)
{
    for (guint c = 0; c < trial->set->num_classes; c++) {
        durations_free(trial->durations[c], trial->set->classes[c]);
        g_free(trial->spans[c]);
    }
    g_free(trial->durations);
    g_free(trial->spans);
    topology_free(trial->topology);
    program_set_free(trial->set);
}

/* Calls @visit with every op of every class, and what it takes. */
typedef void (*Visit)(const Trial *trial, guint class_index, const Op *op, double *seconds,
                      gpointer data);

static void each_op(const Trial *trial, Visit visit, gpointer data)
{
    for (guint c = 0; c < trial->set->num_classes; c++)
        for (guint s = 0; s < trial->set->classes[c]->segments->len; s++) {
            const Segment *segment = program_segment(trial->set->classes[c], s);

            for (guint i = 0; i < segment->num_ops; i++)
                visit(trial, c, &segment->ops[i], &trial->durations[c][s][i], data);
        }
}

/* Every kind of op slower by a factor of its own, those of products and of a head by one: but what
 * copies take is not in rows, and the fixed cost of an op is not its kind's. */
static void slow_down(const Trial *trial, guint class_index, const Op *op, double *seconds,
                      gpointer data)
{
    const double *factors = data;
    const gboolean is_product = op_class(op->kind) == OP_CLASS_GEMM;
    const gboolean is_head = op->kind == OP_HEAD_LOSS || op->kind == OP_HEAD_STATS;

    (void)trial, (void)class_index;
    if (op->kind != OP_COPY && op->kind != OP_CLIP)
        *seconds *= factors[is_product ? OP_LINEAR : is_head ? OP_HEAD_LOSS : op->kind];
}

static void show(const Trial *trial, guint class_index, const Op *op, double *seconds,
                 gpointer data)
{
    const LearnOp shown = {trial->set->classes[class_index], trial->spans[class_index], op,
                           *seconds, 1};

    g_array_append_val((GArray *)data, shown);
}

static Learnt learn(Trial *trial)
{
    g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(LearnOp));

    each_op(trial, show, ops);
    return learn_rows(trial->topology, &trial->context, ops, trial->by_cudnn);
}

/* Rows are not for collectives between nodes. */
static gboolean has_row(const Trial *trial, guint class_index, const Op *op)
{
    guint64 bytes;

    if (!op_kind_is_communication(op->kind))
        return op->kind != OP_COPY;
    const CollectiveContext where = durations_collective(
        trial->set->classes[class_index], op, &trial->context, trial->spans[class_index], &bytes);

    return collective_row_seconds(1, &where) > 0;
}

/* @data: durations of the prediction, by class. */
static void compare(const Trial *trial, guint class_index, const Op *op, double *seconds,
                    gpointer data)
{
    const double *predicted = ((double **)data)[0]++;

    if (has_row(trial, class_index, op))
        ck_assert_msg(fabs(*predicted / *seconds - 1) <= DIGITS || *seconds == 0,
                      "%s took %.9g s, is predicted %.9g s", op_kind_name(op->kind), *seconds,
                      *predicted);
}

/* What the topology now predicts is what the trial's ops took. */
static void check_prediction(const Trial *trial)
{
    g_autoptr(GArray) flat = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint c = 0; c < trial->set->num_classes; c++) {
        const Program *program = trial->set->classes[c];
        double **predicted = durations_new(program, &trial->context, trial->spans[c]);

        for (guint s = 0; s < program->segments->len; s++)
            g_array_append_vals(flat, predicted[s], program_segment(program, s)->num_ops);
        durations_free(predicted, program);
    }
    double *at = (double *)(void *)flat->data;
    each_op(trial, compare, &at);
}

/* @check is called with CASES random trials of one seed. */
static void each_trial(void (*check)(Trial *trial, GRand *random))
{
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = 0; i < CASES; i++) {
        Trial trial;

        trial_open(&trial, random, model);
        check(&trial, random);
        trial_close(&trial);
    }
}

static void slow_down_all(Trial *trial, GRand *random)
{
    double factors[NUM_OPS];

    for (guint k = 0; k < NUM_OPS; k++)
        factors[k] = g_rand_double_range(random, 1, 3);
    each_op(trial, slow_down, factors);
}

static void check_learnt(Trial *trial, GRand *random)
{
    slow_down_all(trial, random);
    const Learnt learnt = learn(trial);

    ck_assert_uint_gt(learnt.gemm, 0);
    ck_assert_uint_gt(learnt.ops, 0);
    check_prediction(trial);
}

START_TEST(what_ops_took_is_what_they_are_predicted_to_take)
{
    each_trial(check_learnt);
}
END_TEST

static void check_fixed_point(Trial *trial, GRand *random)
{
    (void)random;
    learn(trial);
    check_prediction(trial);
}

START_TEST(what_was_predicted_right_is_predicted_as_before)
{
    each_trial(check_fixed_point);
}
END_TEST

static void check_idempotent(Trial *trial, GRand *random)
{
    slow_down_all(trial, random);
    learn(trial);
    g_autofree char *once = topology_print(trial->topology);
    learn(trial);
    g_autofree char *twice = topology_print(trial->topology);

    ck_assert_str_eq(once, twice);
}

START_TEST(the_same_run_twice_changes_nothing)
{
    each_trial(check_idempotent);
}
END_TEST

/* Calibrated rows of another size, and one of a load that the run did not have. */
START_TEST(rows_of_other_keys_stay)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(11);
    g_autoptr(Model) model = case_model(&case_shape);
    const MeasuredGemm gemm = {DTYPE_FP32, 77, 3, 11, 13, 17, 19e9};
    const MeasuredOp op = {(char *)"rmsnorm", DTYPE_FP32, 77, 3, 12345, 0, 5e9};
    const MeasuredCollective gather = {(char *)"all_gather", DTYPE_FP32, 99, 4321, 0.25};
    Trial trial;

    trial_open(&trial, random, model);
    measured_put_gemm(&trial.topology->measured, &gemm);
    measured_put_op(&trial.topology->measured, &op);
    measured_put_collective(&trial.topology->measured, &gather);
    learn(&trial);
    ck_assert_double_eq(measured_find_gemm(&trial.topology->measured, &gemm)->flops_per_s, 19e9);
    ck_assert_double_eq(measured_find_op(&trial.topology->measured, &op)->per_s, 5e9);
    ck_assert_double_eq(
        g_array_index(trial.topology->measured.collectives, MeasuredCollective, 0).seconds, 0.25);
    trial_close(&trial);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("learn");
    TCase *tcase = tcase_create("learn");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_ops_took_is_what_they_are_predicted_to_take);
    tcase_add_test(tcase, what_was_predicted_right_is_predicted_as_before);
    tcase_add_test(tcase, the_same_run_twice_changes_nothing);
    tcase_add_test(tcase, rows_of_other_keys_stay);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
