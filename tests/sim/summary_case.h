/* Random choices that summaries are compared on. */
#pragma once

#include "sim/summary/summary.h"
#include "tests/sim/family_case.h"

/* ASan, under which one takes 5 times as long, is for memory; the release build runs it too. */
#ifdef __SANITIZE_ADDRESS__
enum { GROUPS = 8, LAYOUTS = 400 };
#else
enum { GROUPS = 8, LAYOUTS = 1200 };
#endif

/* SUMMARY_LAYOUTS=10000 tries more. */
static inline guint layouts_of_a_group(void)
{
    const char *text = g_getenv("SUMMARY_LAYOUTS");
    const guint64 layouts = text == NULL ? LAYOUTS : g_ascii_strtoull(text, NULL, 10);

    return (guint)((layouts + GROUPS - 1) / GROUPS);
}

/* On GPUs; on CPUs with cores for both threads of a rank; on CPUs without. */
static inline SimulateContext draw_context(GRand *random, const Case *from, Topology **topology)
{
    const guint world = layout_world(&from->layout);

    if (from->device == DEVICE_CUDA) {
        *topology = case_gpu_topology(64, 80000, 1000 << draw(random, 8));
        return (SimulateContext){
            .topology = *topology, .ranks_per_node = MIN(world, 4), .threads = 1};
    }
    *topology = case_cpu_topology(world * (1 + draw(random, 1)), 1 + draw(random, 20));
    return (SimulateContext){.topology = *topology, .ranks_per_node = world, .threads = 1};
}

/* More micro-batches than the axes' own draw: pipelines fill, and groups of stages repeat. */
static inline Case draw_case(GRand *random, Model *model, guint16 *stages)
{
    for (;;) {
        Case one = case_random_4d(random, model);
        const guint pp = one.layout.size[AXIS_PP];
        const guint most = pp == 1 ? 5 : 6 * pp;

        one.schedule.micro_batches = 1 + draw(random, draw(random, 1) == 0 ? 2 : most);
        one.schedule.micro_batch = 1 + draw(random, 2);
        one.workload.seq_len = 4 * (1 + draw(random, 15));
        draw_stages(random, &one, stages);
        one.workload.global_batch =
            layout_data_ranks(&one.layout) * one.schedule.micro_batch * one.schedule.micro_batches;
        if (case_verdict(&one, NULL) == VERDICT_OK)
            return one;
    }
}

static inline CaseShape draw_shape(GRand *random)
{
    return (CaseShape){
        .vocab = 256 + draw(random, 600),
        .hidden = 24 * (1 + draw(random, 3)),
        .ffn = 8 + draw(random, 200),
        .layers = 1 + draw(random, 9),
        .heads = 4,
        .kv_heads = 1u << draw(random, 2),
        .tied = draw(random, 1) == 1,
    };
}

/* @live_bytes: of the program's peak moment; @total_bytes: with alignment and gaps. */
static inline void compare_peak(guint64 peak_bytes, guint64 live_bytes, guint64 total_bytes,
                                const char *text)
{
    ck_assert_msg(peak_bytes <= total_bytes,
                  "%s: peak %" G_GUINT64_FORMAT ", arena %" G_GUINT64_FORMAT, text, peak_bytes,
                  total_bytes);
    ck_assert_msg((double)peak_bytes >= 0.99 * (double)live_bytes &&
                      (double)peak_bytes <= 1.01 * (double)live_bytes,
                  "%s: peak %" G_GUINT64_FORMAT ", the program's %" G_GUINT64_FORMAT, text,
                  peak_bytes, live_bytes);
}
