#include "sim/base/error.h"
#include "sim/import/hostlist.h"
#include "sim/import/import_kinds.h"

#include <string.h>

/* One line of a topology.conf: a switch of a tree, or a block. */
typedef struct {
    char *name;
    GPtrArray *nodes, *children; /* names; one of them NULL */
    guint line;
    guint parent; /* index of the switch above; NO_PARENT */
    guint height; /* 0 = joins nodes */
    guint size;   /* nodes below */
} Switch;

enum { NO_PARENT = G_MAXUINT };

typedef struct {
    const ImportText *text;
    GArray *switches;    /* Switch */
    GHashTable *names;   /* of switches -> index + 1 */
    GHashTable *nodes;   /* names -> line + 1 */
    GArray *block_sizes; /* guint: nodes of a block, of blocks of blocks, ... */
    guint block_line;    /* of BlockSizes= */
    gboolean tree, blocks;
} Slurm;

static void clear_switch(gpointer data)
{
    Switch *item = data;

    g_free(item->name);
    g_clear_pointer(&item->nodes, g_ptr_array_unref);
    g_clear_pointer(&item->children, g_ptr_array_unref);
}

static void slurm_clear(Slurm *slurm)
{
    g_clear_pointer(&slurm->switches, g_array_unref);
    g_clear_pointer(&slurm->names, g_hash_table_unref);
    g_clear_pointer(&slurm->nodes, g_hash_table_unref);
    g_clear_pointer(&slurm->block_sizes, g_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Slurm, slurm_clear)

static Switch *switch_at(const Slurm *slurm, guint i)
{
    return &g_array_index(slurm->switches, Switch, i);
}

gboolean import_slurm_begins(const char *line)
{
    return g_ascii_strncasecmp(line, "SwitchName=", 11) == 0 ||
           g_ascii_strncasecmp(line, "BlockName=", 10) == 0;
}

/* ---- lines ---- */

/* What a line gives, as it is written; NULL where not given. */
typedef struct {
    char *name, *nodes, *children, *sizes;
    gboolean block;
} Line;

static void line_clear(Line *line)
{
    g_free(line->name);
    g_free(line->nodes);
    g_free(line->children);
    g_free(line->sizes);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Line, line_clear)

/* LinkSpeed is read and unused, as by Slurm. */
static gboolean read_word(const Slurm *slurm, guint number, const char *word, Line *line,
                          GError **error)
{
    const struct {
        const char *key;
        char **value;
    } keys[] = {
        {"SwitchName", &line->name},   {"BlockName", &line->name},   {"Nodes", &line->nodes},
        {"Switches", &line->children}, {"BlockSizes", &line->sizes}, {"LinkSpeed", NULL},
    };
    const char *equals = strchr(word, '=');
    g_autofree char *shown = import_shown(word);

    for (guint i = 0; equals != NULL && equals[1] != '\0' && i < G_N_ELEMENTS(keys); i++) {
        if (strlen(keys[i].key) != (gsize)(equals - word) ||
            g_ascii_strncasecmp(word, keys[i].key, (gsize)(equals - word)) != 0)
            continue;
        line->block |= i == 1;
        if (keys[i].value == NULL)
            return TRUE;
        if (*keys[i].value != NULL)
            return import_refuse(slurm->text, number, error,
                                 "\"%s\"; allowed: each key once a line", shown);
        *keys[i].value = g_strdup(equals + 1);
        return TRUE;
    }
    return import_refuse(slurm->text, number, error,
                         "\"%s\"; allowed: SwitchName=, Switches=, Nodes=, LinkSpeed=, BlockName=, "
                         "BlockSizes=",
                         shown);
}

static GPtrArray *expand(const Slurm *slurm, guint number, const char *list, GError **error)
{
    g_autoptr(GError) why = NULL;
    GPtrArray *names = hostlist_expand(list, &why);

    if (names == NULL)
        import_refuse(slurm->text, number, error, "%s", why->message);
    return names;
}

static gboolean add_nodes(Slurm *slurm, guint number, const GPtrArray *nodes, GError **error)
{
    enum { MAX_NODES = 1 << 20 };

    for (guint i = 0; i < nodes->len; i++) {
        const guint first = GPOINTER_TO_UINT(g_hash_table_lookup(slurm->nodes, nodes->pdata[i]));
        g_autofree char *shown = import_shown(nodes->pdata[i]);

        if (first != 0)
            return import_refuse(slurm->text, number, error,
                                 "node %s is already in line %u; allowed: once", shown, first);
        g_hash_table_insert(slurm->nodes, g_strdup(nodes->pdata[i]), GUINT_TO_POINTER(number + 1));
    }
    return g_hash_table_size(slurm->nodes) <= MAX_NODES ||
           import_refuse(slurm->text, number, error, "more than %d nodes", MAX_NODES);
}

static gboolean add_switch(Slurm *slurm, guint number, const Line *line, GError **error)
{
    g_autofree char *shown = import_shown(line->name);
    Switch item = {.line = number, .parent = NO_PARENT};

    if ((line->nodes == NULL) == (line->children == NULL) || (line->block && line->children))
        return import_refuse(slurm->text, number, error,
                             "%s; allowed: Nodes= or Switches=, a "
                             "block has Nodes=",
                             shown);
    if (g_hash_table_contains(slurm->names, line->name))
        return import_refuse(slurm->text, number, error, "%s is already there; allowed: once",
                             shown);
    if (line->nodes != NULL) {
        item.nodes = expand(slurm, number, line->nodes, error);
        if (item.nodes == NULL || !add_nodes(slurm, number, item.nodes, error)) {
            clear_switch(&item);
            return FALSE;
        }
        item.size = item.nodes->len;
    } else {
        item.children = expand(slurm, number, line->children, error);
        if (item.children == NULL)
            return FALSE;
    }
    item.name = g_strdup(line->name);
    g_array_append_val(slurm->switches, item);
    g_hash_table_insert(slurm->names, g_strdup(line->name), GUINT_TO_POINTER(slurm->switches->len));
    return TRUE;
}

/* "4,8,16": each a multiple of the one before. */
static gboolean read_block_sizes(Slurm *slurm, guint number, const char *sizes, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(sizes, ",", -1);
    guint before = 1;

    slurm->block_line = number;
    for (guint i = 0; parts[i] != NULL; i++) {
        guint64 size = 0;
        g_autofree char *shown = import_shown(parts[i]);

        if (!g_ascii_string_to_unsigned(parts[i], 10, 1, G_MAXINT, &size, NULL) ||
            size % before != 0 || (i > 0 && size == before))
            return import_refuse(slurm->text, number, error,
                                 "BlockSizes: \"%s\"; allowed: numbers of nodes, each a multiple "
                                 "of the one before",
                                 shown);
        before = (guint)size;
        g_array_append_val(slurm->block_sizes, before);
    }
    return TRUE;
}

static gboolean read_line(Slurm *slurm, guint number, GError **error)
{
    g_autofree char *content = g_strdup(slurm->text->lines[number]);
    g_auto(Line) line = {.block = FALSE};

    content[strcspn(content, "#")] = '\0';
    g_auto(GStrv) words = import_words(content);

    if (words[0] == NULL)
        return TRUE;
    for (char **word = words; *word != NULL; word++) {
        if (!read_word(slurm, number, *word, &line, error))
            return FALSE;
    }
    if (line.sizes != NULL && line.name == NULL && slurm->block_sizes->len == 0)
        return read_block_sizes(slurm, number, line.sizes, error);
    if (line.sizes != NULL || line.name == NULL)
        return import_refuse(slurm->text, number, error,
                             "allowed: SwitchName=, BlockName= or one BlockSizes= a line");
    slurm->tree |= !line.block;
    slurm->blocks |= line.block;
    if (slurm->tree && slurm->blocks)
        return import_refuse(slurm->text, number, error,
                             "switches and blocks in one file; allowed: one kind");
    return add_switch(slurm, number, &line, error);
}

/* ---- the tree ---- */

static gboolean link_switches(Slurm *slurm, GError **error)
{
    for (guint i = 0; i < slurm->switches->len; i++) {
        const Switch *above = switch_at(slurm, i);

        for (guint c = 0; above->children != NULL && c < above->children->len; c++) {
            const char *name = above->children->pdata[c];
            const guint index = GPOINTER_TO_UINT(g_hash_table_lookup(slurm->names, name));
            g_autofree char *shown = import_shown(name);

            if (index == 0)
                return import_refuse(
                    slurm->text, above->line, error,
                    "switch %s is not in the file; allowed: those of SwitchName=", shown);
            if (switch_at(slurm, index - 1)->parent != NO_PARENT)
                return import_refuse(
                    slurm->text, above->line, error,
                    "switch %s is below another already, in line %u; allowed: a "
                    "tree",
                    shown, switch_at(slurm, switch_at(slurm, index - 1)->parent)->line + 1);
            switch_at(slurm, index - 1)->parent = i;
        }
    }
    return TRUE;
}

/* Adds the nodes of each leaf to all above it, and the heights. */
static gboolean measure_switches(Slurm *slurm, GError **error)
{
    for (guint i = 0; i < slurm->switches->len; i++) {
        guint height = 0;

        if (switch_at(slurm, i)->nodes == NULL)
            continue;
        for (guint at = switch_at(slurm, i)->parent; at != NO_PARENT;
             at = switch_at(slurm, at)->parent) {
            Switch *above = switch_at(slurm, at);

            if (height == slurm->switches->len)
                return import_refuse(slurm->text, above->line, error,
                                     "the switches above form a circle; allowed: a tree");
            height++;
            above->height = MAX(above->height, height);
            above->size += switch_at(slurm, i)->size;
        }
    }
    for (guint i = 0; i < slurm->switches->len; i++) {
        if (switch_at(slurm, i)->size == 0) /* a circle has no leaf below it */
            return import_refuse(slurm->text, switch_at(slurm, i)->line, error,
                                 "no nodes below this switch; allowed: a tree");
    }
    return TRUE;
}

static gboolean check_root(const Slurm *slurm, GError **error)
{
    const Switch *root = NULL;

    for (guint i = 0; i < slurm->switches->len; i++) {
        const Switch *item = switch_at(slurm, i);

        if (item->parent != NO_PARENT)
            continue;
        if (root != NULL) {
            g_autofree char *first = import_shown(root->name), *second = import_shown(item->name);

            return import_refuse(slurm->text, item->line, error,
                                 "switches %s (line %u) and %s have no common root: no network "
                                 "joins their nodes; allowed: one tree a file",
                                 first, root->line + 1, second);
        }
        root = item;
    }
    return root != NULL ||
           import_refuse(slurm->text, 0, error, "the switches form a circle; allowed: a tree");
}

/* ---- tiers: consecutive nodes that a switch, or a block of blocks, joins ---- */

static guint common_divisor(guint a, guint b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Of switches of unequal size, blocks of the common divisor lie within one each; a last smaller
 * one only ends early. */
typedef struct {
    guint divisor, last;
} Sizes;

static void add_size(Sizes *sizes, guint size)
{
    if (sizes->last != 0)
        sizes->divisor = common_divisor(sizes->divisor, sizes->last);
    sizes->last = size;
}

static guint tier_of(const Sizes *sizes)
{
    if (sizes->divisor == 0)
        return sizes->last;
    return sizes->last < sizes->divisor ? sizes->divisor
                                        : common_divisor(sizes->divisor, sizes->last);
}

/* The highest switches of at most @height divide the nodes among them. */
static guint tree_tier(const Slurm *slurm, guint height)
{
    Sizes sizes = {.divisor = 0};

    for (guint i = 0; i < slurm->switches->len; i++) {
        const Switch *item = switch_at(slurm, i);

        if (item->height <= height &&
            (item->parent == NO_PARENT || switch_at(slurm, item->parent)->height > height))
            add_size(&sizes, item->size);
    }
    return tier_of(&sizes);
}

static gboolean check_blocks(const Slurm *slurm, GError **error)
{
    for (guint i = 0; slurm->block_sizes->len > 0 && i < slurm->switches->len; i++) {
        const Switch *block = switch_at(slurm, i);
        const guint size = g_array_index(slurm->block_sizes, guint, 0);

        if (block->size < size)
            return import_refuse(slurm->text, block->line, error,
                                 "a block of %u nodes; allowed: at least %u, as BlockSizes of line "
                                 "%u has it",
                                 block->size, size, slurm->block_line + 1);
    }
    return TRUE;
}

/* Spans in nodes, innermost first, below that of all. */
static GArray *tiers_of(const Slurm *slurm)
{
    const guint all = g_hash_table_size(slurm->nodes);
    GArray *tiers = g_array_new(FALSE, FALSE, sizeof(guint));
    guint tallest = 0, before = 1;

    for (guint i = 0; i < slurm->switches->len; i++)
        tallest = MAX(tallest, switch_at(slurm, i)->height);

    const guint num = slurm->tree ? tallest + 1 : MAX(slurm->block_sizes->len, 1);
    const guint block = tree_tier(slurm, 0);

    for (guint i = 0; i < num; i++) {
        guint64 span = block;

        if (slurm->tree)
            span = tree_tier(slurm, i);
        else if (i > 0)
            span = (guint64)block * g_array_index(slurm->block_sizes, guint, i) /
                   g_array_index(slurm->block_sizes, guint, 0);
        if (span <= before || span >= all)
            continue;
        before = (guint)span;
        g_array_append_val(tiers, before);
    }
    return tiers;
}

/* ---- the topology of the nodes, with tiers ---- */

static const NetworkLevel *level_at(const Topology *topology, guint i)
{
    return &g_array_index(topology->networks, NetworkLevel, i);
}

static gboolean has_name(const Topology *topology, const char *name)
{
    for (guint i = 0; i < topology->networks->len; i++) {
        if (g_str_equal(level_at(topology, i)->name, name))
            return TRUE;
    }
    return FALSE;
}

static char *unused_name(const Topology *topology)
{
    for (guint number = 1;; number++) {
        g_autofree char *name = g_strdup_printf("tier-%u", number);

        if (!has_name(topology, name))
            return g_steal_pointer(&name);
    }
}

/* As fast as the level that joined those GPUs so far: the file says who is near, not how fast. */
static void add_tier(Topology *base, guint span)
{
    guint at = 0;

    while (at + 1 < base->networks->len && level_at(base, at)->span != 0 &&
           level_at(base, at)->span < span)
        at++;
    const NetworkLevel *outer = level_at(base, at);

    if (outer->span == span || g_str_equal(outer->kind, "nvlink"))
        return;
    NetworkLevel tier = *outer;

    tier.name = unused_name(base);
    tier.kind = g_strdup(outer->kind);
    tier.span = span;
    g_array_insert_val(base->networks, at, tier);
}

static gboolean check_base(const Slurm *slurm, const Topology *base, GError **error)
{
    const NetworkLevel *outermost = level_at(base, base->networks->len - 1);
    const guint64 gpus = (guint64)base->gpus_per_node * g_hash_table_size(slurm->nodes);

    if (gpus > G_MAXINT)
        return import_refuse(slurm->text, 0, error,
                             "nodes x GPUs = %" G_GUINT64_FORMAT "; allowed: at most %d", gpus,
                             G_MAXINT);
    if ((outermost->span == 0 || outermost->span > base->gpus_per_node) &&
        (base->networks->len > 1 || base->gpus_per_node == 1))
        return TRUE;
    return import_refuse(slurm->text, 0, error,
                         "--topology %s has no network between nodes; allowed: one with it",
                         base->name);
}

static void apply(const Slurm *slurm, Topology *base)
{
    g_autoptr(GArray) tiers = tiers_of(slurm);
    g_autofree char *shown = import_file_name(slurm->text);
    char *source =
        g_strdup_printf("%s; nodes and tiers: %s (Slurm topology.conf), which does not say how "
                        "fast a tier is",
                        base->source, shown);

    g_array_index(base->networks, NetworkLevel, base->networks->len - 1).span = 0;
    for (guint i = 0; i < tiers->len; i++) {
        if (g_array_index(tiers, guint, i) * base->gpus_per_node > 1)
            add_tier(base, g_array_index(tiers, guint, i) * base->gpus_per_node);
    }
    base->nodes = g_hash_table_size(slurm->nodes);
    g_free(base->source);
    base->source = source;
}

gboolean import_slurm(const ImportText *text, Topology *base, GError **error)
{
    g_auto(Slurm) slurm = {
        .text = text,
        .switches = g_array_new(FALSE, FALSE, sizeof(Switch)),
        .names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
        .nodes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
        .block_sizes = g_array_new(FALSE, FALSE, sizeof(guint)),
    };

    g_array_set_clear_func(slurm.switches, clear_switch);
    for (guint i = 0; i < text->num_lines; i++) {
        if (!read_line(&slurm, i, error))
            return FALSE;
    }
    if (!link_switches(&slurm, error))
        return FALSE;
    if (slurm.tree && (!check_root(&slurm, error) || !measure_switches(&slurm, error)))
        return FALSE;
    if (!check_blocks(&slurm, error) || !check_base(&slurm, base, error))
        return FALSE;
    apply(&slurm, base);
    return TRUE;
}
