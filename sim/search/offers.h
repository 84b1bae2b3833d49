/* What a search offers of each choice; whether that is legal together is another question. */
#pragma once

#include "sim/search/search.h"

gboolean offers_schedule(const SearchRequest *request, guint pp, ScheduleKind kind);

/* Virtual stages cut the layers evenly, or are few. */
gboolean offers_virtual_stages(const SearchRequest *request, guint pp, ScheduleKind kind,
                               guint virtual_stages);

/* As it is enumerated: hybrid_shard as full_shard. */
gboolean offers_strategy(const SearchRequest *request, const Layout *layout, Strategy strategy);
gboolean offers_context(const SearchRequest *request, guint cp, ContextKind kind);

/* @size of an axis, where others don't matter; tp, pp and cp have their own. */
gboolean offers_axis(const SearchRequest *request, Axis axis, guint size);
gboolean offers_tp(const SearchRequest *request, guint tp);
gboolean offers_pp(const SearchRequest *request, guint pp);
gboolean offers_cp(const SearchRequest *request, guint cp);
gboolean offers_ep(const SearchRequest *request, const Layout *layout, guint ep);

/* The largest to try. */
guint offers_most_tp(const SearchRequest *request);
guint offers_most_ep(const SearchRequest *request);
guint offers_most_virtual_stages(const SearchRequest *request, guint pp, ScheduleKind kind);

/* Whether as few layers as fit are a choice: where what is computed again is free.  (Megatron-LM
 * takes one number for all stages, torchtitan none, so only for fsdp-run.) */
gboolean offers_partly(const SearchRequest *request);
