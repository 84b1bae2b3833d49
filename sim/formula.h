/* What a plan costs by the formulas of textbooks: beside what its programs add up to. */
#pragma once

#include "sim/search/plan.h"

/* Of the rank that the plan's figures are of. */
const Program *formula_program(const Plan *plan, const ProgramSet *set);

/* Psi of a rank: parameters of its stage, of each matrix the part that its tp position holds; as
 * they are before they are sharded.  Both copies of tied embeddings count where stages have one
 * each, and keys and values that several tp positions hold count on each. */
guint64 formula_parameters(const Program *program);

/* The same of experts, or of all else; and how many ranks share each. */
guint64 formula_parameters_of(const Program *program, gboolean experts);
guint formula_shard_ranks(const Plan *plan, gboolean experts);

/* Bytes of parameters, gradients, master and moments of a rank: the table of DESIGN 4, a unit by
 * its strategy, before padding. */
double formula_state_bytes(const Plan *plan, const Program *program);

/* Bytes of all whole parameters, of experts or of all else, as they are gathered, before padding.
 */
double formula_gather_bytes(const Plan *plan, const Program *program, gboolean experts);

/* Share of a step in which each stage waits for others, when all stages take the same time, nothing
 * that moves takes any, and a backward pass takes twice as long as a forward pass:
 *
 *     gpipe, 1f1b   (p - 1) / (m + p - 1)
 *     interleaved   (p - 1) / (v m + p - 1)
 *     zb_h1         (p - 1) / (3 m + p - 1)
 *
 *     p  stages     m  micro-batches     v  chunks a stage
 *
 * The last two are ideals, which a timetable reaches only where its exchanges line up.
 *
 * Sources: Narayanan et al. 2021, arXiv 2104.04473, sec. 2.2 (where the bubble is a share of the
 * rest of the step); Qi et al. 2023, arXiv 2401.10241, whose (p - 1)(F + B - W) is (p - 1) thirds
 * where forward, backward for inputs and backward for weights take the same time. */
double formula_bubble(const Schedule *schedule, guint pp);

/* That formula in words: "(p - 1) / (v m + p - 1) = 3 / (2 x 16 + 3)". */
char *formula_bubble_text(const Schedule *schedule, guint pp);

/* Bytes of what one chunk of the model hands to the next: an activation of one micro-batch. */
guint64 formula_handed_bytes(const Plan *plan);

/* Chunks before and after those of a stage: what it receives for each micro-batch. */
guint formula_neighbours(const Plan *plan, guint stage);
