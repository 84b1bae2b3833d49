/* Counter-based random numbers: a value depends on (seed, name, global element) only, never on who
 * draws it or in what order, so every layout starts from the same parameters and sees the same
 * data. */
#pragma once

#include <glib.h>

/* What numbers the elements of that parameter: element e is number random_numbers() + e. */
guint64 random_numbers(guint64 seed, const char *name);

/* What rounds elements @number, @number + 1, ... at step @step: 16 bits each, all as likely. */
void random_bits_fill(guint16 *out, guint64 step, guint64 number, guint64 n);

/* Normal values of mean 0: out[i] is element @first_element + i of the parameter @name. */
void random_normal_fill(float *out, guint64 seed, const char *name, guint64 first_element,
                        guint64 n, double std);

/* Where sample @sample (of the global batch) of step @step starts in a text of @length bytes. */
guint64 random_sample_start(guint64 seed, guint64 step, guint64 sample, guint64 length);
