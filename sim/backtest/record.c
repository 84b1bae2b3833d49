#include "sim/backtest/record.h"

#include "sim/base/error.h"
#include "sim/base/units.h"

#include <stddef.h>
#include <string.h>

typedef enum { FIELD_TEXT, FIELD_COUNT, FIELD_NUMBER, FIELD_WORD } FieldKind;

typedef struct {
    const char *column;
    FieldKind kind;
    gsize offset;
    const char *const *words; /* FIELD_WORD: by value, NULL-terminated */
    gboolean is_optional;     /* tables need not have the column */
} Field;

static const char *const statuses[] = {"ok", "oom", "oom_or_crash", "failed", NULL};
static const char *const trusts[] = {"high", "medium", "low", NULL};
static const char *const strategies[] = {"no_shard",   "shard_optimizer", "shard_grad_op",
                                         "full_shard", "hybrid_shard",    "shard_optimizer_hybrid",
                                         NULL};
static const char *const recomputes[] = {"none", "selective", "full", NULL};
static const char *const precisions[] = {"bf16", "fp16", "fp8", "fp4", "fp32", NULL};
static const char *const memories[] = {"allocated", "reserved", "nvidia_smi", "stated", NULL};
static const char *const yes_no[] = {"0", "1", NULL};

#define FIELD(column_, kind_, member_, ...)                                                        \
    {                                                                                              \
        .column = column_, .kind = kind_, .offset = offsetof(Record, member_), ##__VA_ARGS__       \
    }

static const Field fields[] = {
    FIELD("id", FIELD_TEXT, id),
    FIELD("model", FIELD_TEXT, model),
    FIELD("params_b", FIELD_NUMBER, params_b),
    FIELD("layers", FIELD_COUNT, layers),
    FIELD("hidden", FIELD_COUNT, hidden),
    FIELD("heads", FIELD_COUNT, heads),
    FIELD("kv_heads", FIELD_COUNT, kv_heads),
    FIELD("ffn_hidden", FIELD_COUNT, ffn),
    FIELD("vocab", FIELD_COUNT, vocab),
    FIELD("seq_len", FIELD_COUNT, seq_len),
    FIELD("gpu", FIELD_TEXT, gpu),
    FIELD("gpu_mem_gb", FIELD_NUMBER, gpu_mem_gb),
    FIELD("gpus", FIELD_COUNT, gpus),
    FIELD("gpus_per_node", FIELD_COUNT, gpus_per_node),
    FIELD("network", FIELD_TEXT, network),
    FIELD("framework", FIELD_TEXT, framework),
    FIELD("dp", FIELD_COUNT, dp),
    FIELD("fsdp_strategy", FIELD_TEXT, strategy_text),
    FIELD("tp", FIELD_COUNT, tp),
    FIELD("sp", FIELD_WORD, sequence, .words = yes_no),
    FIELD("pp", FIELD_COUNT, pp),
    FIELD("vpp", FIELD_COUNT, vpp),
    FIELD("cp", FIELD_COUNT, cp),
    FIELD("ep", FIELD_COUNT, ep),
    FIELD("micro_batch", FIELD_COUNT, micro_batch),
    FIELD("global_batch", FIELD_COUNT, global_batch),
    FIELD("precision", FIELD_TEXT, precision_text),
    FIELD("compile_or_flash", FIELD_TEXT, software),
    FIELD("tokens_per_s_per_gpu", FIELD_NUMBER, tokens_per_s_per_gpu),
    FIELD("tflops_per_gpu", FIELD_NUMBER, tflops_per_gpu),
    FIELD("mfu_pct", FIELD_NUMBER, mfu_pct),
    FIELD("step_time_s", FIELD_NUMBER, step_time_s),
    FIELD("peak_mem_gb", FIELD_NUMBER, peak_mem_gb),
    FIELD("status", FIELD_WORD, status, .words = statuses),
    FIELD("active_params_b", FIELD_NUMBER, active_params_b),
    FIELD("trust", FIELD_WORD, trust, .words = trusts),
    FIELD("flags", FIELD_TEXT, flags),
    FIELD("strategy_kind", FIELD_WORD, strategy, .words = strategies),
    FIELD("recompute_kind", FIELD_WORD, recompute, .words = recomputes),
    FIELD("precision_kind", FIELD_WORD, precision, .words = precisions),
    FIELD("mem_kind", FIELD_WORD, memory, .words = memories),
    FIELD("group", FIELD_TEXT, group),
    FIELD("source_locator", FIELD_TEXT, locator, .is_optional = TRUE),
    FIELD("recompute", FIELD_TEXT, recompute_text, .is_optional = TRUE),
};

/* A value that is wrong: where it stands, and what is allowed. */
typedef struct {
    const Csv *csv;
    const CsvRow *row;
    const Field *field;
    const char *value;
} Place;

static gboolean refuse(const Place *place, const char *allowed, GError **error)
{
    return fail(error, ERROR_INPUT, "%s:%u: column \"%s\" = \"%s\": must be %s, or empty",
                place->csv->source, place->row->line, place->field->column, place->value, allowed);
}

static gboolean read_word(const Place *place, gint *out, GError **error)
{
    const char *const *words = place->field->words;

    for (guint i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], place->value) == 0) {
            *out = (gint)i;
            return TRUE;
        }
    g_autofree char *allowed = g_strjoinv(", ", (char **)words);
    return refuse(place, allowed, error);
}

static gboolean read_value(const Place *place, Record *record, GError **error)
{
    enum { MAX_COUNT = 1 << 28 };
    gpointer out = (char *)record + place->field->offset;
    guint64 count;

    switch (place->field->kind) {
    case FIELD_TEXT:
        *(const char **)out = place->value;
        return TRUE;
    case FIELD_COUNT:
        if (*place->value != '\0' && !units_parse_count(place->value, 1, MAX_COUNT, &count, NULL))
            return refuse(place, "a whole number from 1 to 268435456", error);
        *(guint *)out = *place->value == '\0' ? 0 : (guint)count;
        return TRUE;
    case FIELD_NUMBER:
        return *place->value == '\0' || units_parse_number(place->value, (double *)out, NULL) ||
               refuse(place, "a number of 0 or more", error);
    case FIELD_WORD:
        *(gint *)out = UNKNOWN;
        return *place->value == '\0' || read_word(place, (gint *)out, error);
    }
    g_assert_not_reached();
}

/* "NVIDIA DGX-H100", "Tesla V100": what follows those who sell it. */
static const char *without_vendor(const char *gpu)
{
    static const char *const vendors[] = {"NVIDIA", "AMD", "Tesla", "Instinct", "DGX", "HGX"};

    for (guint i = 0; i < G_N_ELEMENTS(vendors); i++) {
        const gsize length = strlen(vendors[i]);

        if (g_ascii_strncasecmp(gpu, vendors[i], length) == 0 &&
            (gpu[length] == ' ' || gpu[length] == '-'))
            gpu += length + 1;
    }
    return gpu;
}

static gboolean read_record(const Csv *csv, const CsvRow *row, Record *record, GError **error)
{
    for (guint f = 0; f < G_N_ELEMENTS(fields); f++) {
        const gint column = csv_column(csv, fields[f].column);
        const Place place = {csv, row, &fields[f], column < 0 ? "" : row->fields[column]};

        if (!read_value(&place, record, error))
            return FALSE;
    }
    record->gpu = without_vendor(record->gpu);
    if (*record->id == '\0' || record->status == UNKNOWN)
        return fail(error, ERROR_INPUT, "%s:%u: columns \"id\" and \"status\" must not be empty",
                    csv->source, row->line);
    return TRUE;
}

GArray *records_read(const Csv *csv, GError **error)
{
    g_autoptr(GArray) records = g_array_new(FALSE, TRUE, sizeof(Record));

    for (guint f = 0; f < G_N_ELEMENTS(fields); f++)
        if (!fields[f].is_optional && csv_column(csv, fields[f].column) < 0) {
            fail(error, ERROR_INPUT, "%s:1: no column \"%s\"", csv->source, fields[f].column);
            return NULL;
        }
    for (guint i = 0; i < csv->rows->len; i++) {
        Record record = {0};

        if (!read_record(csv, &g_array_index(csv->rows, CsvRow, i), &record, error))
            return NULL;
        g_array_append_val(records, record);
    }
    return g_steal_pointer(&records);
}

char *record_source(const Record *record)
{
    return g_strndup(record->id, strcspn(record->id, "-"));
}

/* Rows that say nothing about layouts in general: arithmetic that does not add up, modes that no
 * one trains in, software that was replaced. */
static const char *const left_out[] = {"ARITH",        "LAYOUT",    "deterministic",
                                       "offload",      "per-layer", "LoRA",
                                       "non-standard", "Thunder",   "old software"};

gboolean record_is_trusted(const Record *record)
{
    for (guint i = 0; i < G_N_ELEMENTS(left_out); i++)
        if (strstr(record->flags, left_out[i]) != NULL)
            return FALSE;
    return record->trust != TRUST_LOW;
}

/* The step times of the playbook's sweep differ by 71% between repeats of one run. */
gboolean record_is_timed(const Record *record)
{
    return record->status == STATUS_OK && record_is_trusted(record) &&
           !g_str_has_prefix(record->id, "USP") && record_step_seconds(record) > 0;
}

double record_step_seconds(const Record *record)
{
    const double tokens = (double)record->global_batch * record->seq_len;

    if (record->step_time_s > 0)
        return record->step_time_s;
    if (record->tokens_per_s_per_gpu == 0 || tokens == 0 || record->gpus == 0)
        return 0;
    return tokens / (record->tokens_per_s_per_gpu * record->gpus);
}
