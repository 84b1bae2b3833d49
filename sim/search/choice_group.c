#include "sim/search/choice_group.h"

#include "sim/base/parallel.h"
#include "sim/search/offers.h"

#include <string.h>

/* ---- into groups ---- */

enum { LAST_CHOICE = G_MAXUINT };

static guint key_hash(gconstpointer data)
{
    const GroupKey *key = data;
    guint32 part[sizeof *key / sizeof(guint32)];
    guint64 hash = 0;

    memcpy(part, key, sizeof part);
    for (guint i = 0; i < G_N_ELEMENTS(part); i++)
        hash = (hash ^ part[i]) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
    return (guint)(hash >> 32);
}

static gboolean key_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(GroupKey)) == 0;
}

/* The choices of one key, a list in the order of enumeration. */
typedef struct {
    const GroupKey *key;
    guint first, last;
} KeyChoices;

/* Fewer sequences come first: what does not fit of them does not of more (stage_add_fewer()). */
static gint by_key(gconstpointer a, gconstpointer b)
{
    const GroupKey *left = ((const KeyChoices *)a)->key, *right = ((const KeyChoices *)b)->key;

    if (left->micro_batch != right->micro_batch)
        return left->micro_batch < right->micro_batch ? -1 : 1;
    return memcmp(left, right, sizeof *left);
}

/* KeyChoices of @choices, in their order; @next (array of as many): the list. */
static GArray *list_by_key(const GArray *choices, guint *next)
{
    GArray *lists = g_array_new(FALSE, FALSE, sizeof(KeyChoices));
    g_autoptr(GHashTable) numbers = g_hash_table_new(key_hash, key_equal); /* from 1 */

    for (guint i = 0; i < choices->len; i++) {
        const GroupKey *key = &g_array_index(choices, LegalChoice, i).key;
        const guint number = GPOINTER_TO_UINT(g_hash_table_lookup(numbers, key));

        next[i] = LAST_CHOICE;
        if (number == 0) {
            const KeyChoices list = {key, i, i};

            g_array_append_val(lists, list);
            g_hash_table_insert(numbers, (gpointer)key, GUINT_TO_POINTER(lists->len));
            continue;
        }
        KeyChoices *list = &g_array_index(lists, KeyChoices, number - 1);
        next[list->last] = i;
        list->last = i;
    }
    g_array_sort(lists, by_key);
    return lists;
}

static Candidate candidate_of(const Candidate *common, const GroupKey *key)
{
    Candidate candidate = *common;

    candidate.layout.ep = key->ep;
    candidate.micro_batch = key->micro_batch;
    candidate.virtual_stages = key->virtual_stages;
    candidate.schedule = key->schedule;
    candidate.context = key->context;
    candidate.recompute = key->recompute;
    candidate.too_large = TOO_LARGE_UNKNOWN;
    const guint rank_batch = candidate.global_batch / layout_data_ranks(&candidate.layout);
    candidate.micro_batches = MAX(rank_batch / candidate.micro_batch, 1);
    return candidate;
}

static Candidate candidate_with(const Candidate *of, const Member *member)
{
    const guint ranks = layout_data_ranks(&of->layout);
    Candidate candidate = *of;

    candidate.layout.size[AXIS_DP_SHARD] = member->dp_shard;
    candidate.layout.size[AXIS_DP_REPLICATE] = ranks / member->dp_shard;
    candidate.strategy = member->strategy;
    candidate.order = 2 * member->order + (of->partly ? 1 : 0); /* right behind all layers */
    return candidate;
}

static void take_summary(Candidate *candidate, const Summary *summary)
{
    candidate->bound_s = summary->bound_s / candidate->global_batch;
    candidate->floor_bytes = summary->floor_bytes;
    candidate->stage = (guint16)summary->stage;
}

/* Strategies of single units may cost less than those of the groups: nothing is known. */
static void bound_group(const SearchRequest *request, Summariser *summariser, guint64 limit_bytes,
                        ChoiceGroup *group)
{
    Plan plan = {.gpus = 0};

    if (request->sharding.num_overrides > 0)
        return;
    candidate_choose(request, &group->least, &plan);
    const ProgramSpec spec = plan_spec(&plan);
    const Summary summary = summarise_least(summariser, &spec, group->least.partly, limit_bytes);
    take_summary(&group->least, &summary);
    g_free(plan.recompute_layers);
}

/* Where even all layers are not enough there is none with some. */
static void note_too_large(Candidates *found, const ChoiceGroup *group)
{
    if (group->least.partly)
        return;
    g_array_append_vals(found->large, group, 1);
    found->rejected[VERDICT_MEMORY] += group->num;
}

/* @none: the same group, but that it computes nothing again; NULL where that doesn't fit. */
static void add_group(Candidates *found, const SearchRequest *request, Summariser *summariser,
                      const ChoiceGroup *none, ChoiceGroup *group)
{
    group->put_off = none != NULL;
    if (none != NULL)
        group->least.bound_s = none->least.bound_s;
    else
        bound_group(request, summariser, found->floor_limit_bytes, group);
    if (candidates_fit(found, group))
        g_array_append_vals(found->groups, group, 1);
    else
        note_too_large(found, group);
}

static ChoiceGroup take_choices(Candidates *found, const Candidate *common, const GArray *choices,
                                const KeyChoices *list, const guint *next)
{
    const LegalChoice *all = &g_array_index(choices, LegalChoice, 0);
    const Member *widest = &all[list->first].member;
    ChoiceGroup group = {.first = found->members->len};

    for (guint i = list->first; i != LAST_CHOICE; i = next[i]) {
        if (all[i].member.dp_shard > widest->dp_shard)
            widest = &all[i].member;
        g_array_append_val(found->members, all[i].member);
    }
    const Candidate candidate = candidate_of(common, list->key);
    group.least = candidate_with(&candidate, widest);
    group.least.order = all[list->first].member.order;
    group.num = found->members->len - group.first;
    return group;
}

/* Whether @key is @none but for what is computed again. */
static gboolean goes_with(const GroupKey *key, const GroupKey *none)
{
    GroupKey without = *key;

    without.recompute = RECOMPUTE_NONE;
    return key->recompute != RECOMPUTE_NONE && key_equal(&without, none);
}

void groups_add(Candidates *found, const SearchRequest *request, Summariser *summariser,
                const Candidate *common, const GArray *choices)
{
    g_autofree guint *next = g_new(guint, choices->len);
    g_autoptr(GArray) lists = list_by_key(choices, next);
    const GroupKey *none_key = NULL;
    ChoiceGroup none = {.num = 0};

    for (guint i = 0; i < lists->len; i++) {
        const KeyChoices *list = &g_array_index(lists, KeyChoices, i);
        ChoiceGroup group = take_choices(found, common, choices, list, next);
        const gboolean fits =
            none_key != NULL && goes_with(list->key, none_key) && candidates_fit(found, &none);

        add_group(found, request, summariser, fits ? &none : NULL, &group);
        if (group.least.recompute == RECOMPUTE_NONE) {
            none = group;
            none_key = list->key;
        }
        if (group.least.recompute == RECOMPUTE_NONE || !offers_partly(request))
            continue;
        group.least.partly = TRUE;
        add_group(found, request, summariser, fits ? &none : NULL, &group);
    }
}

typedef struct {
    const SearchRequest *request;
    const Candidates *candidates;
    ChoiceGroup *groups;
} Bounding;

static void bound_put_off(gpointer data, guint i, guint worker)
{
    const Bounding *bounding = data;
    ChoiceGroup *group = &bounding->groups[i];
    const double least_s = group->least.bound_s;

    bound_group(bounding->request, candidates_summariser(bounding->candidates, worker),
                bounding->candidates->floor_limit_bytes, group);
    group->least.bound_s = MAX(group->least.bound_s, least_s);
    group->put_off = FALSE;
}

void candidates_bound(Candidates *candidates, const SearchRequest *request, ChoiceGroup *groups,
                      guint num)
{
    Bounding bounding = {request, candidates, groups};

    candidates_add_summarisers(candidates, num);
    parallel_run(num, bound_put_off, &bounding);
    for (guint i = 0; i < num; i++)
        if (!candidates_fit(candidates, &groups[i]))
            note_too_large(candidates, &groups[i]);
}

/* ---- out of groups ---- */

/* What one group has become. */
typedef struct {
    GArray *listed; /* Candidate */
    guint64 too_large;
    Candidate least; /* of those */
} Expanded;

typedef struct {
    const SearchRequest *request;
    const Candidates *candidates;
    const ChoiceGroup *groups;
    Expanded *expanded; /* by group */
} Expansion;

/* How much too large is of interest only of what needs least. */
static void expand_member(const Expansion *expansion, Summariser *summariser, Candidate candidate,
                          Expanded *expanded)
{
    const guint64 limit_bytes = expansion->candidates->floor_limit_bytes;
    const guint64 least_bytes = expanded->least.floor_bytes;
    Plan plan = {.gpus = 0};

    candidate_choose(expansion->request, &candidate, &plan);
    const ProgramSpec spec = plan_spec(&plan);
    const Summary summary = summarise(summariser, &spec, MAX(limit_bytes, least_bytes));
    take_summary(&candidate, &summary);
    g_free(plan.recompute_layers);
    if (candidate.floor_bytes <= limit_bytes) {
        g_array_append_val(expanded->listed, candidate);
        return;
    }
    expanded->too_large++;
    if (candidate.floor_bytes < least_bytes)
        expanded->least = candidate;
}

/* Where nothing computed again does not fit and all of it does: as few layers as fit.  No step is
 * shorter than with what the stages that say most need at least. */
static void expand_partly(const Expansion *expansion, Summariser *summariser, Candidate candidate,
                          Expanded *expanded)
{
    const guint64 limit_bytes = expansion->candidates->floor_limit_bytes;
    guint16 by_stage[MAX_CHUNKS];
    Plan plan = {.gpus = 0};

    candidate_choose(expansion->request, &candidate, &plan);
    ProgramSpec spec = plan_spec(&plan), none = spec;
    none.schedule.recompute = RECOMPUTE_NONE;
    if (summarise(summariser, &none, limit_bytes).floor_bytes <= limit_bytes ||
        summarise(summariser, &spec, limit_bytes).floor_bytes > limit_bytes ||
        !summarise_recompute(summariser, &spec, limit_bytes, FALSE, by_stage))
        return;
    spec.schedule.recompute_layers = by_stage;
    const Summary summary = summarise(summariser, &spec, G_MAXUINT64);
    take_summary(&candidate, &summary);
    g_array_append_val(expanded->listed, candidate);
}

static void expand_group(gpointer data, guint i, guint worker)
{
    const Expansion *expansion = data;
    const Candidates *candidates = expansion->candidates;
    const ChoiceGroup *group = &expansion->groups[i];
    Summariser *summariser = candidates_summariser(candidates, worker);
    Expanded *expanded = &expansion->expanded[i];

    *expanded = (Expanded){.listed = g_array_new(FALSE, FALSE, sizeof(Candidate)),
                           .least = candidates->least};
    for (guint m = group->first; m < group->first + group->num; m++) {
        const Member *member = &g_array_index(candidates->members, Member, m);
        const Candidate candidate = candidate_with(&group->least, member);

        if (group->least.partly)
            expand_partly(expansion, summariser, candidate, expanded);
        else
            expand_member(expansion, summariser, candidate, expanded);
    }
}

static void take_expanded(Candidates *candidates, const ChoiceGroup *group,
                          const Expanded *expanded, GArray *listed)
{
    const Candidate *least = &candidates->least;

    if (group->least.partly)
        candidates->legal += expanded->listed->len;
    if (expanded->listed->len > 0)
        g_array_append_vals(listed, expanded->listed->data, expanded->listed->len);
    if (expanded->least.floor_bytes < least->floor_bytes ||
        (expanded->least.floor_bytes == least->floor_bytes && expanded->least.order < least->order))
        candidates->least = expanded->least;
}

/* Returns how many are too large. */
static guint64 expand(Candidates *candidates, const SearchRequest *request,
                      const ChoiceGroup *groups, guint num, GArray *listed)
{
    g_autofree Expanded *expanded = g_new(Expanded, num);
    Expansion expansion = {request, candidates, groups, expanded};
    guint64 too_large = 0;

    candidates_add_summarisers(candidates, num);
    parallel_run(num, expand_group, &expansion);
    for (guint i = 0; i < num; i++) {
        take_expanded(candidates, &groups[i], &expanded[i], listed);
        too_large += expanded[i].too_large;
        g_array_unref(expanded[i].listed);
    }
    return too_large;
}

void candidates_expand(Candidates *candidates, const SearchRequest *request,
                       const ChoiceGroup *groups, guint num, GArray *listed)
{
    candidates->rejected[VERDICT_MEMORY] += expand(candidates, request, groups, num, listed);
}

void candidates_note_large(Candidates *candidates, const Candidate *candidate)
{
    if (!candidate->partly && candidate->floor_bytes < candidates->nearly.floor_bytes)
        candidates->nearly = *candidate;
}

/* Those of groups that are too large as a whole have been counted. */
const Candidate *candidates_least(Candidates *candidates, const SearchRequest *request)
{
    enum { AT_ONCE = 16 };
    g_autoptr(GArray) none = g_array_new(FALSE, FALSE, sizeof(Candidate));
    const GArray *large = candidates->large;

    g_array_sort(candidates->large, candidate_by_floor);
    for (guint i = 0; i < large->len; i += AT_ONCE) {
        const ChoiceGroup *groups = &g_array_index(large, ChoiceGroup, i);

        if (groups->least.floor_bytes > candidates->least.floor_bytes)
            break;
        expand(candidates, request, groups, MIN(large->len - i, AT_ONCE), none);
    }
    return candidates->least.floor_bytes != G_MAXUINT64 ? &candidates->least : &candidates->nearly;
}
