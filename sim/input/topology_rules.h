/* The keys of topology files: one table a group, read and printed through it. */
#pragma once

#include "sim/base/key_text.h"
#include "sim/base/units.h"
#include "sim/input/topology.h"

#include <glib.h>

typedef enum {
    VALUE_TEXT,   /* char * */
    VALUE_DEVICE, /* DeviceKind */
    VALUE_COUNT,  /* guint */
    VALUE_NUMBER, /* double, as those below where nothing is said */
    VALUE_BYTES,  /* guint64 */
    VALUE_BYTES_PER_S,
    VALUE_FLOPS_PER_S,
    VALUE_SECONDS,
    VALUE_WATTS,
} ValueKind;

typedef struct {
    const char *key;
    ValueKind kind;
    gboolean required;
    const char *zero_word; /* stands for 0, which is otherwise not allowed; or NULL */
    double min, max;       /* of the value in base units; max 0 = none */
    gsize offset;          /* in the struct of the group, or KEPT */
} KeyRule;

/* Not a field: goes to Topology.extras. */
#define KEPT G_MAXSIZE

typedef struct {
    const KeyRule *rules;
    guint num_rules;
} KeyRules;

extern const KeyRules cluster_rules, node_rules, gpu_rules, network_rules, memory_rules, cost_rules,
    reliability_rules, machine_rules;

/* Reads @group into @record (NULL where all keys are KEPT).  Kept ones are appended to @extras
 * under the name @kept_as. */
typedef struct {
    void *record;
    GArray *extras;
    const char *kept_as;
} RuleTarget;

gboolean rules_read(const KeyRules *rules, const KeyText *text, const KeyGroup *group,
                    const RuleTarget *target, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* units_parse(), of what no part of a cluster exceeds. */
gboolean rules_parse_units(const char *text, Units units, double *value,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Appends the keys of @record to @group of @file; what is 0 or NULL and not required is left out.
 */
void rules_print(const KeyRules *rules, const void *record, GKeyFile *file, const char *group);

/* topology_measured.c: the groups [measured gemm|ops|collectives], without the first word. */
void measured_init(Measured *measured);
void measured_clear(Measured *measured);
gboolean measured_read(Measured *measured, const char *name, const KeyText *text,
                       const KeyGroup *group, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void measured_print(const Measured *measured, GKeyFile *file);
