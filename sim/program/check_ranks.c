/* check, across ranks: what one member of a group does, the others do too, and nothing waits in a
 * circle.
 *
 * Ranks of a class do the same, so nodes are (class, instance); a cycle among ranks maps to a
 * closed walk among classes, hence no cycle here means none there. */
#include "sim/program/check_parts.h"

#include "sim/program/happens.h"

#include <string.h>

enum { STEPS = 2 };

typedef struct {
    const ProgramSet *set;
    GPtrArray *problems;
    Happens **happens;   /* by class */
    guint64 *first_node; /* by class; one past the end too */
    guint64 *root;       /* by node: union-find over contracted nodes */
} RankCheck;

static guint64 find(RankCheck *check, guint64 node)
{
    while (check->root[node] != node) {
        check->root[node] = check->root[check->root[node]];
        node = check->root[node];
    }
    return node;
}

static void contract(RankCheck *check, guint64 a, guint64 b)
{
    check->root[find(check, a)] = find(check, b);
}

/* ---- agreement ---- */

/* The communication ops of one class on the streams of one purpose, in issue order. */
typedef struct {
    const Op *op;
    const Call *call;
    guint64 instance;
    const char *stream;
} Issued;

static GArray *issued_ops(const Program *program, const Happens *happens, const char *purpose)
{
    GArray *issued = g_array_new(FALSE, FALSE, sizeof(Issued));

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];
            const Stream *stream = program_stream(program, op->stream);
            const Issued entry = {op, call, happens->first_op[c] + i, stream->name};

            if (op_kind_is_communication(op->kind) &&
                strcmp(program_stream_purpose(program, stream), purpose) == 0)
                g_array_append_val(issued, entry);
        }
    }
    return issued;
}

/* Bytes as the wire sees them; an exchange is matched message by message instead. */
static guint64 op_bytes(const Program *program, const Op *op)
{
    return op->kind == OP_EXCHANGE ? 0 : op_volume_bytes(program, op);
}

/* Bytes alone don't tell: 5 and 6 elements are chunks of 3 on 2 ranks. */
static gboolean same_collective(const Program *left, const Op *a, const Program *right, const Op *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && op_bytes(left, a) == op_bytes(right, b) &&
           op_collective_elements(left, a) == op_collective_elements(right, b);
}

/* Nor do kind and bytes: blocks are alike, and one would be gathered into another's place; as are
 * single numbers, and counts would be added to losses. */
static gboolean same_subject(const Program *left, const Issued *a, const Program *right,
                             const Issued *b)
{
    return a->call->unit == b->call->unit && a->call->micro_batch == b->call->micro_batch &&
           strcmp(program_tensor(left, a->op->operands[0].tensor)->name,
                  program_tensor(right, b->op->operands[0].tensor)->name) == 0;
}

/* "loss of unit 0 micro-batch 1"; the caller's. */
static char *subject_text(const Program *program, const Issued *issued)
{
    return g_strdup_printf("%s of unit %u micro-batch %u",
                           program_tensor(program, issued->op->operands[0].tensor)->name,
                           issued->call->unit, issued->call->micro_batch);
}

static void check_subject(RankCheck *check, const guint classes[2], const Issued *a,
                          const Issued *b)
{
    const Program *left = check->set->classes[classes[0]], *right = check->set->classes[classes[1]];

    if (same_subject(left, a, right, b))
        return;
    g_autofree char *ours = subject_text(left, a), *theirs = subject_text(right, b);
    check_problem(check->problems, "%s: %s in class %u meets %s in class %u", a->stream, ours,
                  classes[0], theirs, classes[1]);
}

/* Compares stream by stream: two streams of a purpose are two communicators, told apart by their
 * names. */
static void check_agreement(RankCheck *check, const char *purpose, guint a, guint b)
{
    const Program *left = check->set->classes[a], *right = check->set->classes[b];
    g_autoptr(GArray) ours = issued_ops(left, check->happens[a], purpose);
    g_autoptr(GArray) theirs = issued_ops(right, check->happens[b], purpose);
    g_autofree gboolean *matched = g_new0(gboolean, theirs->len + 1);

    for (guint i = 0; i < ours->len; i++) {
        const Issued *mine = &g_array_index(ours, Issued, i);
        guint j = 0;

        if (mine->op->kind == OP_EXCHANGE)
            continue;
        while (j < theirs->len &&
               (matched[j] || g_array_index(theirs, Issued, j).op->kind == OP_EXCHANGE ||
                strcmp(g_array_index(theirs, Issued, j).stream, mine->stream) != 0))
            j++;
        if (j == theirs->len) {
            check_problem(check->problems, "%s: class %u issues %s %u times more than class %u",
                          mine->stream, a, op_kind_name(mine->op->kind), 1, b);
            return;
        }
        const Issued *other = &g_array_index(theirs, Issued, j);
        matched[j] = TRUE;
        check_subject(check, (const guint[]){a, b}, mine, other);
        if (!same_collective(left, mine->op, right, other->op))
            check_problem(check->problems,
                          "%s: op %u is %s of %" G_GUINT64_FORMAT
                          " %s in class %u and %s of %" G_GUINT64_FORMAT " %s in class %u",
                          mine->stream, i, op_kind_name(mine->op->kind),
                          op_collective_elements(left, mine->op), dtype_name(mine->op->dtype), a,
                          op_kind_name(other->op->kind), op_collective_elements(right, other->op),
                          dtype_name(other->op->dtype), b);
        for (guint s = 0; s < STEPS; s++)
            contract(check,
                     check->first_node[a] + s * check->happens[a]->ops_per_step + mine->instance,
                     check->first_node[b] + s * check->happens[b]->ops_per_step + other->instance);
    }
    for (guint j = 0; j < theirs->len; j++)
        if (!matched[j] && g_array_index(theirs, Issued, j).op->kind != OP_EXCHANGE)
            check_problem(check->problems, "%s: class %u issues %s that class %u does not",
                          g_array_index(theirs, Issued, j).stream, b,
                          op_kind_name(g_array_index(theirs, Issued, j).op->kind), a);
}

/* ---- exchanges ---- */

/* What a message is; @nth: how many like it the rank has issued before. */
typedef struct {
    guint micro_batch, chunk, direction;
    guint64 bytes;
    gboolean send;
    guint ahead; /* how far up in the group its peer is */
    guint nth;
    const char *stream;
} Wire;

typedef struct {
    Wire wire;
    const Issued *issued;
} Sent;

/* What members of a group that run one class exchange. */
typedef struct {
    GArray *issued;      /* Issued */
    GArray *messages;    /* Sent, in that order */
    GHashTable *by_wire; /* Wire to Sent, of messages */
} Exchanges;

typedef struct {
    guint class_index;
    const Exchanges *exchanges; /* the first member of a class owns them */
} Member;

static guint wire_hash(gconstpointer data)
{
    const Wire *wire = data;
    const guint fields[] = {wire->micro_batch,  wire->chunk, wire->direction, wire->send ? 1u : 0u,
                            (guint)wire->bytes, wire->ahead, wire->nth};
    guint hash = g_str_hash(wire->stream);

    for (guint i = 0; i < G_N_ELEMENTS(fields); i++)
        hash = (hash ^ fields[i]) * 16777619u;
    return hash;
}

static gboolean wire_equal(gconstpointer left, gconstpointer right)
{
    const Wire *a = left, *b = right;

    return a->send == b->send && a->ahead == b->ahead && a->nth == b->nth &&
           a->micro_batch == b->micro_batch && a->chunk == b->chunk &&
           a->direction == b->direction && a->bytes == b->bytes &&
           strcmp(a->stream, b->stream) == 0;
}

/* The first of its kind. */
static Wire wire_of(const Program *program, guint size, const Issued *issued, guint operand)
{
    const Message *message = &issued->op->messages[operand];
    const Operand *moved = &issued->op->operands[operand];

    return (Wire){
        .micro_batch = (guint)((gint)issued->call->micro_batch + message->micro_batch_shift),
        .chunk = message->chunk,
        .direction = message->direction,
        .bytes = tensor_copy_bytes(program_tensor(program, moved->tensor)),
        .send = moved->access == ACCESS_READ,
        .ahead = message->peer_shift % size,
        .stream = issued->stream,
    };
}

static void exchanges_free(Exchanges *exchanges)
{
    g_hash_table_unref(exchanges->by_wire);
    g_array_unref(exchanges->messages);
    g_array_unref(exchanges->issued);
    g_free(exchanges);
}

/* Takes @issued. */
static Exchanges *exchanges_new(const Program *program, guint size, GArray *issued)
{
    Exchanges *exchanges = g_new(Exchanges, 1);
    g_autoptr(GHashTable) counts = g_hash_table_new_full(wire_hash, wire_equal, g_free, NULL);

    *exchanges = (Exchanges){issued, g_array_new(FALSE, FALSE, sizeof(Sent)),
                             g_hash_table_new(wire_hash, wire_equal)};
    for (guint i = 0; i < issued->len; i++) {
        const Issued *at = &g_array_index(issued, Issued, i);

        for (guint o = 0; at->op->kind == OP_EXCHANGE && o < at->op->num_operands; o++) {
            Sent sent = {wire_of(program, size, at, o), at};
            const guint before = GPOINTER_TO_UINT(g_hash_table_lookup(counts, &sent.wire));

            g_hash_table_insert(counts, g_memdup2(&sent.wire, sizeof sent.wire),
                                GUINT_TO_POINTER(before + 1));
            sent.wire.nth = before;
            g_array_append_val(exchanges->messages, sent);
        }
    }
    for (guint m = 0; m < exchanges->messages->len; m++) {
        Sent *sent = &g_array_index(exchanges->messages, Sent, m);

        g_hash_table_insert(exchanges->by_wire, &sent->wire, sent);
    }
    return exchanges;
}

/* Of equal messages the first pairs with the first, the second with the second: transports keep
 * their order. */
static void check_message(RankCheck *check, const Member *members, guint size, guint position,
                          const Sent *sent)
{
    const Wire *wire = &sent->wire;
    const guint peer = (position + wire->ahead) % size;
    const guint a = members[position].class_index, b = members[peer].class_index;
    Wire wanted = *wire;

    wanted.send = !wire->send;
    wanted.ahead = (size - wire->ahead) % size;
    const Sent *other = g_hash_table_lookup(members[peer].exchanges->by_wire, &wanted);
    if (other == NULL) {
        check_problem(check->problems,
                      "%s: class %u %s micro-batch %u chunk %u direction %u (%" G_GUINT64_FORMAT
                      " bytes) %s position %u, which has no counterpart",
                      wire->stream, a, wire->send ? "sends" : "receives", wire->micro_batch,
                      wire->chunk, wire->direction, wire->bytes, wire->send ? "to" : "from", peer);
        return;
    }
    for (guint s = 0; s < STEPS; s++)
        contract(
            check,
            check->first_node[a] + s * check->happens[a]->ops_per_step + sent->issued->instance,
            check->first_node[b] + s * check->happens[b]->ops_per_step + other->issued->instance);
}

/* The first of @members with the class of @position's. */
static guint first_alike(const Member *members, guint position)
{
    guint first = 0;

    while (members[first].class_index != members[position].class_index)
        first++;
    return first;
}

/* Members of one class exchange alike, as peers are named by how far they are: where all are, what
 * holds for the first of them holds for the others. */
static void check_exchanges(RankCheck *check, const Group *group, const char *purpose)
{
    g_autofree Member *members = g_new0(Member, group->size);
    g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func((GDestroyNotify)exchanges_free);
    gboolean alike = TRUE;

    for (guint p = 0; p < group->size; p++) {
        const guint c = members[p].class_index = check->set->class_of[group->ranks[p]];
        const guint first = first_alike(members, p);

        alike = alike && first == 0;
        if (first == p)
            g_ptr_array_add(owned, exchanges_new(check->set->classes[c], group->size,
                                                 issued_ops(check->set->classes[c],
                                                            check->happens[c], purpose)));
        members[p].exchanges =
            first == p ? g_ptr_array_index(owned, owned->len - 1) : members[first].exchanges;
    }
    for (guint p = 0; p < (alike ? MIN(group->size, 1) : group->size); p++) {
        const GArray *messages = members[p].exchanges->messages;

        for (guint m = 0; m < messages->len; m++)
            check_message(check, members, group->size, p, &g_array_index(messages, Sent, m));
    }
}

static guint64 classes_key(const RankCheck *check, const Group *group)
{
    guint64 key = 1469598103934665603u;

    for (guint i = 0; i < group->size; i++)
        key = (key ^ check->set->class_of[group->ranks[i]]) * 1099511628211u;
    return key;
}

/* Groups with the same classes at the same positions are checked once. */
static void check_group_set(RankCheck *check, const GroupSet *groups)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);

    for (guint g = 0; g < groups->groups->len; g++) {
        const Group *group = &g_array_index(groups->groups, Group, g);
        gint64 key = (gint64)classes_key(check, group);

        if (g_hash_table_contains(seen, &key))
            continue;
        g_hash_table_add(seen, g_memdup2(&key, sizeof key));
        for (guint i = 1; i < group->size; i++) {
            const guint a = check->set->class_of[group->ranks[0]];
            const guint b = check->set->class_of[group->ranks[i]];

            if (a != b)
                check_agreement(check, groups->purpose, a, b);
        }
        check_exchanges(check, group, groups->purpose);
    }
}

/* Every group that a program names must exist for its ranks and have the size it was built for. */
static void check_group_refs(RankCheck *check)
{
    for (guint rank = 0; rank < check->set->num_ranks; rank++) {
        const Program *program = check->set->classes[check->set->class_of[rank]];

        for (guint g = 0; g < program->groups->len; g++) {
            const GroupRef *ref = &g_array_index(program->groups, GroupRef, g);
            const Group *group = program_set_group(check->set, ref->purpose, rank);

            if (group == NULL || group->size != ref->size)
                check_problem(check->problems, "rank %u is in no group \"%s\" of %u", rank,
                              ref->purpose, ref->size);
        }
    }
}

/* ---- cycles ---- */

typedef struct {
    guint64 from, to;
} Edge;

static void add_edge(RankCheck *check, GArray *edges, guint64 from, guint64 to)
{
    const Edge edge = {find(check, from), find(check, to)};

    g_array_append_val(edges, edge);
}

/* Issue order: the issuing thread runs compute ops itself on a synchronous device, and one thread
 * runs all communication of a rank in the order of issue. */
static void add_issue_edges(RankCheck *check, GArray *edges, guint class_index)
{
    const Happens *happens = check->happens[class_index];
    const guint64 base = check->first_node[class_index];
    guint64 compute = 0, communication = 0; /* newest of each, plus one */

    for (guint64 i = 0; i < happens->ops_per_step * STEPS; i++) {
        const gboolean is_compute = happens->stream[i] == COMPUTE_STREAM;

        if (compute != 0)
            add_edge(check, edges, base + compute - 1, base + i);
        if (!is_compute && communication != 0)
            add_edge(check, edges, base + communication - 1, base + i);
        if (is_compute)
            compute = i + 1;
        else
            communication = i + 1;
    }
}

static void add_wait_edges(RankCheck *check, GArray *edges, guint class_index)
{
    const Program *program = check->set->classes[class_index];
    const Happens *happens = check->happens[class_index];
    const guint64 base = check->first_node[class_index];

    for (guint s = 0; s < STEPS; s++) {
        for (guint c = 0; c < program->step.calls->len; c++) {
            const Call *call = &g_array_index(program->step.calls, Call, c);
            const Segment *segment = program_segment(program, call->segment);
            const guint64 start = s * happens->ops_per_step + happens->first_op[c];

            for (guint i = 0; i < segment->num_ops; i++)
                for (guint w = 0; w < segment->ops[i].num_waits; w++)
                    add_edge(check, edges, base + start + segment->ops[i].waits[w],
                             base + start + i);
            for (guint w = 0; w < call->num_waits; w++) {
                const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait + w);
                guint64 event;

                if (wait->before < segment->num_ops && happens_event(happens, wait, s, &event))
                    add_edge(check, edges, base + event, base + start + wait->before);
            }
        }
    }
}

static gint by_from(gconstpointer a, gconstpointer b)
{
    const Edge *left = a, *right = b;

    return left->from < right->from ? -1 : left->from > right->from;
}

/* Kahn's algorithm over contracted nodes. */
static void check_acyclic(RankCheck *check, GArray *edges, guint64 num_nodes)
{
    g_autofree guint32 *incoming = g_new0(guint32, num_nodes);
    g_autofree guint64 *first = g_new0(guint64, num_nodes + 1);
    g_autofree guint64 *ready = g_new(guint64, num_nodes);
    guint64 num_ready = 0, done = 0, roots = 0;

    g_array_sort(edges, by_from);
    for (guint e = 0; e < edges->len; e++) {
        incoming[g_array_index(edges, Edge, e).to]++;
        first[g_array_index(edges, Edge, e).from + 1]++;
    }
    for (guint64 n = 0; n < num_nodes; n++) {
        first[n + 1] += first[n];
        if (check->root[n] != n)
            continue;
        roots++;
        if (incoming[n] == 0)
            ready[num_ready++] = n;
    }
    for (; done < num_ready; done++)
        for (guint64 e = first[ready[done]]; e < first[ready[done] + 1]; e++) {
            const guint64 to = g_array_index(edges, Edge, e).to;

            if (--incoming[to] == 0)
                ready[num_ready++] = to;
        }
    if (done != roots)
        check_problem(check->problems,
                      "deadlock: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                      " operations wait for each other in a circle",
                      roots - done, roots);
}

void check_ranks(const ProgramSet *set, GPtrArray *problems)
{
    RankCheck check = {.set = set, .problems = problems};
    g_autoptr(GArray) edges = g_array_new(FALSE, FALSE, sizeof(Edge));

    check.happens = g_new(Happens *, set->num_classes);
    check.first_node = g_new0(guint64, set->num_classes + 1);
    for (guint c = 0; c < set->num_classes; c++) {
        check.happens[c] = happens_new(set->classes[c], STEPS);
        check.first_node[c + 1] = check.first_node[c] + check.happens[c]->ops_per_step * STEPS;
    }
    const guint64 num_nodes = check.first_node[set->num_classes];
    check.root = g_new(guint64, num_nodes);
    for (guint64 n = 0; n < num_nodes; n++)
        check.root[n] = n;
    check_group_refs(&check);
    for (guint g = 0; problems->len == 0 && g < set->group_sets->len; g++)
        check_group_set(&check, &g_array_index(set->group_sets, GroupSet, g));
    if (problems->len == 0) {
        for (guint c = 0; c < set->num_classes; c++) {
            add_issue_edges(&check, edges, c);
            add_wait_edges(&check, edges, c);
        }
        check_acyclic(&check, edges, num_nodes);
    }
    for (guint c = 0; c < set->num_classes; c++)
        happens_free(check.happens[c]);
    g_free(check.happens);
    g_free(check.first_node);
    g_free(check.root);
}
