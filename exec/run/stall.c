/* A rank has entered an op when its own counterpart is not after what its communication thread
 * began last.  Counterparts are found by counting: the n-th collective on a stream of a group is
 * the same op for all members, the n-th message from a to b is b's n-th from a. */
#include "exec/run/stall.h"

#include "exec/run/op_number.h"

#include <string.h>

static const Program *program_of(const ProgramSet *set, guint rank)
{
    return set->classes[set->class_of[rank]];
}

static gboolean is_running(const RankState *state, ProgressLane lane)
{
    return state->lane[lane].count % 2 == 1;
}

static gboolean has_begun(const RankState *state, ProgressLane lane)
{
    return state->lane[lane].count > 0;
}

static guint64 step_of(const RankState *state, ProgressLane lane)
{
    return state->lane[lane].at >> 32;
}

static guint32 number_of(const RankState *state, ProgressLane lane)
{
    return (guint32)state->lane[lane].at;
}

static gboolean is_control(const RankState *state)
{
    return number_of(state, LANE_COMMUNICATION) >= PROGRESS_OPEN;
}

static gboolean find_op(const ProgramSet *set, const RankState *states, guint rank,
                        ProgressLane lane, const Call **call, const Op **op)
{
    return has_begun(&states[rank], lane) &&
           op_number_find(program_of(set, rank), number_of(&states[rank], lane), call, op);
}

/* ---- counting ---- */

/* What is counted: the collectives of one stream, or the messages between two ranks on it. */
typedef struct {
    const char *purpose, *stream;
    gboolean collective;
    guint peer_shift; /* of messages, as in Message */
    gboolean send;
} Counted;

static guint count_in_op(const Program *program, const Op *op, const Counted *what)
{
    guint count = 0;

    if (!op_kind_is_communication(op->kind) || (op->kind != OP_EXCHANGE) != what->collective)
        return 0;
    const Stream *stream = program_stream(program, op->stream);
    if (strcmp(stream->name, what->stream) != 0 ||
        strcmp(program_stream_purpose(program, stream), what->purpose) != 0)
        return 0;
    if (what->collective)
        return 1;
    for (guint i = 0; i < op->num_operands; i++)
        if (op->messages[i].peer_shift == what->peer_shift &&
            (op->operands[i].access == ACCESS_READ) == what->send)
            count++;
    return count;
}

/* Of the ops with numbers below @end. */
static guint64 count_below(const Program *program, guint32 end, const Counted *what)
{
    const CallList *const lists[] = {&program->step, &program->epilogue, &program->prologue};
    guint32 number = 0;
    guint64 count = 0;

    for (guint l = 0; l < G_N_ELEMENTS(lists); l++)
        for (guint c = 0; c < lists[l]->calls->len; c++) {
            const Segment *segment =
                program_segment(program, g_array_index(lists[l]->calls, Call, c).segment);

            for (guint i = 0; i < segment->num_ops && number < end; i++, number++)
                count += count_in_op(program, &segment->ops[i], what);
        }
    return count;
}

/* Up to and with what the communication thread began last.  A step counts as if epilogue and
 * prologue belonged to each: what does not run is left out by all ranks alike. */
static guint64 count_begun(const Program *program, const RankState *state, const Counted *what)
{
    const OpNumbers numbers = op_numbers(program);
    const guint32 number = number_of(state, LANE_COMMUNICATION);

    if (!has_begun(state, LANE_COMMUNICATION))
        return 0;
    const guint32 end = number < numbers.end      ? number + 1
                        : number == PROGRESS_OPEN ? 0 /* before all ops */
                                                  : numbers.epilogue;
    return step_of(state, LANE_COMMUNICATION) * count_below(program, numbers.end, what) +
           count_below(program, end, what);
}

/* ---- who waits for whom ---- */

/* Whom one rank waits for. */
typedef struct {
    const ProgramSet *set;
    const RankState *states;
    guint rank;
    GArray *missing, *unknown; /* guint; unknown may be NULL */
} Search;

static void add_rank(GArray *ranks, guint rank)
{
    for (guint i = 0; ranks != NULL && i < ranks->len; i++)
        if (g_array_index(ranks, guint, i) == rank)
            return;
    if (ranks != NULL)
        g_array_append_val(ranks, rank);
}

static void add_other(const Search *search, guint other, gboolean missing)
{
    if (!search->states[other].seen)
        add_rank(search->unknown, other);
    else if (missing)
        add_rank(search->missing, other);
}

/* What the rank counts as @own, the other counts as @theirs. */
static void compare(const Search *search, guint other, const Counted *own, const Counted *theirs)
{
    const RankState *states = search->states;

    add_other(search, other,
              count_begun(program_of(search->set, other), &states[other], theirs) <
                  count_begun(program_of(search->set, search->rank), &states[search->rank], own));
}

static void compare_messages(const Search *search, const Group *group, const Op *op,
                             const Counted *what)
{
    for (guint i = 0; i < op->num_operands; i++) {
        Counted own = *what, theirs = *what;

        const guint peer =
            (group_position(group, search->rank) + op->messages[i].peer_shift) % group->size;

        own.peer_shift = op->messages[i].peer_shift;
        own.send = op->operands[i].access == ACCESS_READ;
        theirs.peer_shift = (group->size - own.peer_shift) % group->size;
        theirs.send = !own.send;
        compare(search, group->ranks[peer], &own, &theirs);
    }
}

/* The control channel: whoever is not in that op; of a gathering a sender may have left. */
static void compare_control(const Search *search)
{
    const guint64 at = search->states[search->rank].lane[LANE_COMMUNICATION].at;

    for (guint other = 0; other < search->set->num_ranks; other++) {
        const RankState *state = &search->states[other];

        if (other != search->rank)
            add_other(search, other,
                      state->lane[LANE_COMMUNICATION].at != at ||
                          (!is_running(state, LANE_COMMUNICATION) &&
                           number_of(state, LANE_COMMUNICATION) != PROGRESS_GATHER));
    }
}

/* The communication op that a rank is in, with what counts it; FALSE when it is in none. */
static gboolean find_communication(const ProgramSet *set, const RankState *states, guint rank,
                                   const Op **op, Counted *what)
{
    const Program *program = program_of(set, rank);
    const Call *call;

    if (!is_running(&states[rank], LANE_COMMUNICATION) ||
        !find_op(set, states, rank, LANE_COMMUNICATION, &call, op) ||
        !op_kind_is_communication((*op)->kind))
        return FALSE;
    const Stream *stream = program_stream(program, (*op)->stream);
    *what = (Counted){.purpose = program_stream_purpose(program, stream),
                      .stream = stream->name,
                      .collective = (*op)->kind != OP_EXCHANGE};
    return TRUE;
}

GArray *stall_waits_for(const ProgramSet *set, const RankState *states, guint rank, GArray *unknown)
{
    GArray *missing = g_array_new(FALSE, FALSE, sizeof(guint));
    const Search search = {set, states, rank, missing, unknown};
    const Op *op;
    Counted what;

    if (is_running(&states[rank], LANE_COMMUNICATION) && is_control(&states[rank]))
        compare_control(&search);
    if (!find_communication(set, states, rank, &op, &what))
        return missing;
    const Group *group = program_set_group(set, what.purpose, rank);
    if (group == NULL)
        return missing;
    if (!what.collective)
        compare_messages(&search, group, op, &what);
    for (guint i = 0; what.collective && i < group->size; i++)
        if (group->ranks[i] != rank)
            compare(&search, group->ranks[i], &what, &what);
    return missing;
}

/* ---- the culprits ---- */

static GArray *ranks_that_do_not_run(const ProgramSet *set, const RankState *states)
{
    GArray *ranks = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint r = 0; r < set->num_ranks; r++)
        if (states[r].seen && !states[r].runs)
            g_array_append_val(ranks, r);
    return ranks;
}

/* Those that somebody waits for, and that wait for nobody.  @unknown: ranks of other machines that
 * somebody waits for. */
static GArray *ends_of_waiting(const ProgramSet *set, const RankState *states, GArray *unknown,
                               gboolean *any)
{
    GArray *ends = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint r = 0; r < set->num_ranks; r++) {
        g_autoptr(GArray) others = stall_waits_for(set, states, r, unknown);

        *any |= others->len > 0;
        for (guint i = 0; i < others->len; i++) {
            const guint other = g_array_index(others, guint, i);
            g_autoptr(GArray) away = g_array_new(FALSE, FALSE, sizeof(guint));
            g_autoptr(GArray) further = stall_waits_for(set, states, other, away);

            if (further->len == 0 && away->len == 0)
                add_rank(ends, other);
        }
    }
    return ends;
}

/* All that are seen are in an op and wait for nobody: those with the fewest moves. */
static GArray *least_far(const ProgramSet *set, const RankState *states)
{
    GArray *ranks = g_array_new(FALSE, FALSE, sizeof(guint));
    guint least = G_MAXUINT, most = 0;

    for (guint r = 0; r < set->num_ranks; r++)
        if (states[r].seen && is_running(&states[r], LANE_COMMUNICATION)) {
            least = MIN(least, states[r].moves);
            most = MAX(most, states[r].moves);
        }
    for (guint r = 0; least < most && r < set->num_ranks; r++)
        if (states[r].seen && is_running(&states[r], LANE_COMMUNICATION) &&
            states[r].moves == least)
            g_array_append_val(ranks, r);
    return ranks;
}

/* Nobody waits for anyone: who has made no progress for longest, but not one of several that are in
 * an op together. */
static GArray *longest_idle(const ProgramSet *set, const RankState *states)
{
    GArray *ranks = g_array_new(FALSE, FALSE, sizeof(guint));
    guint longest = G_MAXUINT;

    for (guint r = 0; r < set->num_ranks; r++)
        if (states[r].seen &&
            (set->num_ranks == 1 || !is_running(&states[r], LANE_COMMUNICATION)) &&
            (longest == G_MAXUINT || states[r].idle_s > states[longest].idle_s))
            longest = r;
    if (longest != G_MAXUINT)
        g_array_append_val(ranks, longest);
    return ranks;
}

GArray *stall_culprits(const ProgramSet *set, const RankState *states)
{
    g_autoptr(GArray) unknown = g_array_new(FALSE, FALSE, sizeof(guint));
    gboolean waiting = FALSE;
    g_autoptr(GArray) stopped = ranks_that_do_not_run(set, states);
    g_autoptr(GArray) ends = ends_of_waiting(set, states, unknown, &waiting);
    g_autoptr(GArray) least = least_far(set, states);

    if (stopped->len > 0)
        return g_steal_pointer(&stopped);
    if (ends->len > 0)
        return g_steal_pointer(&ends);
    if (unknown->len > 0)
        return g_steal_pointer(&unknown);
    if (waiting) /* in a circle */
        return g_steal_pointer(&ends);
    return least->len > 0 ? g_steal_pointer(&least) : longest_idle(set, states);
}

gboolean stall_is_real(const ProgramSet *set, const RankState *states, double limit_s)
{
    g_autoptr(GArray) culprits = stall_culprits(set, states);
    gboolean idle = FALSE, real = culprits->len == 0;

    for (guint r = 0; r < set->num_ranks; r++)
        idle |= states[r].seen && states[r].idle_s >= limit_s;
    for (guint i = 0; i < culprits->len; i++) {
        const RankState *culprit = &states[g_array_index(culprits, guint, i)];

        real |= !culprit->seen || culprit->idle_s >= limit_s;
    }
    return idle && real;
}

/* ---- in words ---- */

static void append_ranks(GString *text, const GArray *ranks)
{
    g_string_append(text, ranks->len == 1 ? "rank" : "ranks");
    for (guint i = 0; i < ranks->len; i++)
        g_string_append_printf(text, " %u", g_array_index(ranks, guint, i));
}

static void append_label(GString *text, const ProgramSet *set, const RankState *states, guint rank,
                         ProgressLane lane)
{
    const Call *call;
    const Op *op;

    if (!find_op(set, states, rank, lane, &call, &op)) {
        g_string_append(text, "an op");
        return;
    }
    g_autofree char *label = program_op_label(program_of(set, rank), call, op);
    g_string_append_printf(text, "%s (op %u of step %" G_GUINT64_FORMAT ")", label,
                           number_of(&states[rank], lane) + 1, step_of(&states[rank], lane));
}

static void append_process(GString *text, const RankState *state)
{
    const char *what = state->process == 'T'   ? "stopped"
                       : state->process == 't' ? "stopped by a debugger"
                       : state->process == 'D' ? "stuck in the kernel"
                       : state->process == 'Z' ? "dead"
                                               : "not running";

    if (!state->runs)
        g_string_append_printf(text, " its process is %s;", what);
}

static void append_compute(GString *text, const ProgramSet *set, const RankState *states,
                           guint rank)
{
    const RankState *state = &states[rank];

    if (!has_begun(state, LANE_COMPUTE)) {
        g_string_append(text, " before its first op");
        return;
    }
    g_string_append(text, !is_running(state, LANE_COMPUTE) ? " after "
                          : state->waiting                 ? " waits to compute "
                                                           : " computes ");
    append_label(text, set, states, rank, LANE_COMPUTE);
}

static void append_group(GString *text, const ProgramSet *set, const RankState *states, guint rank)
{
    const Op *op;
    Counted what;

    if (!find_communication(set, states, rank, &op, &what))
        return;
    const Group *group = program_set_group(set, what.purpose, rank);
    if (what.collective)
        g_string_append_printf(text, ", number %" G_GUINT64_FORMAT,
                               count_begun(program_of(set, rank), &states[rank], &what));
    g_string_append_printf(text, " on %s, group %s (ranks", what.stream, what.purpose);
    for (guint i = 0; group != NULL && i < group->size; i++)
        g_string_append_printf(text, " %u", group->ranks[i]);
    g_string_append_c(text, ')');
}

static void append_communication(GString *text, const ProgramSet *set, const RankState *states,
                                 guint rank)
{
    const RankState *state = &states[rank];
    const guint32 number = number_of(state, LANE_COMMUNICATION);
    g_autoptr(GArray) unknown = g_array_new(FALSE, FALSE, sizeof(guint));

    if (!is_running(state, LANE_COMMUNICATION))
        return;
    g_autoptr(GArray) missing = stall_waits_for(set, states, rank, unknown);
    g_string_append(text, "; communicates: ");
    if (number == PROGRESS_OPEN)
        g_string_append(text, "makes memory and groups with all ranks");
    else if (is_control(state))
        g_string_append_printf(text, "%s all ranks after step %" G_GUINT64_FORMAT,
                               number == PROGRESS_AGREE ? "agrees with" : "gathers from",
                               step_of(state, LANE_COMMUNICATION));
    else
        append_label(text, set, states, rank, LANE_COMMUNICATION);
    append_group(text, set, states, rank);
    if (missing->len > 0) {
        g_string_append(text, ", waits for ");
        append_ranks(text, missing);
    }
    if (unknown->len > 0) {
        g_string_append(text, ", with (on another machine) ");
        append_ranks(text, unknown);
    }
    if (missing->len == 0 && unknown->len == 0)
        g_string_append(text, ", all of them are in it");
}

static void append_storage(GString *text, const ProgramSet *set, const RankState *states,
                           guint rank)
{
    if (!is_running(&states[rank], LANE_STORAGE))
        return;
    g_string_append(text, "; waits for its file: ");
    append_label(text, set, states, rank, LANE_STORAGE);
}

static void append_rank(GString *text, const ProgramSet *set, const RankState *states, guint rank)
{
    g_string_append_printf(text, "fsdp-run: rank %u (pid %d), idle %.1f s:", rank, states[rank].pid,
                           states[rank].idle_s);
    append_process(text, &states[rank]);
    append_compute(text, set, states, rank);
    append_communication(text, set, states, rank);
    append_storage(text, set, states, rank);
    g_string_append_c(text, '\n');
}

char *stall_report(const ProgramSet *set, const RankState *states, double limit_s)
{
    g_autoptr(GArray) culprits = stall_culprits(set, states);
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "fsdp-run: watchdog: no progress for %g s, ", limit_s);
    if (culprits->len == 0) {
        g_string_append(text, "ranks wait for each other");
    } else {
        g_string_append(text, "held up by ");
        append_ranks(text, culprits);
    }
    g_string_append(text, "; what each does:\n");
    for (guint r = 0; r < set->num_ranks; r++)
        if (states[r].seen)
            append_rank(text, set, states, r);
    return g_string_free(text, FALSE);
}
