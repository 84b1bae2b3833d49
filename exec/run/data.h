/* Training data: a UTF-8 text, one token a byte.  Any window may be read at any time, so a sample
 * is keyed by (seed, step, sample) and needs no state. */
#pragma once

#include <glib.h>

typedef struct Data Data;

/* Maps the text at @path.  Refuses (ERROR_INPUT, one line) what is no readable regular file, an
 * empty one, one that is not UTF-8, and a @vocab under 256.  Every byte is read once, here. */
Data *data_open(const char *path, guint vocab, guint seq_len,
                GError **error) G_GNUC_WARN_UNUSED_RESULT;

typedef struct {
    guint64 seed, step, number; /* number: which of the step */
} Sample;

/* Writes the tokens at @positions of the sample's window of seq_len and the labels there (the token
 * that follows each); windows wrap.  Either may be NULL. */
void data_fill(const Data *data, const Sample *sample, const gint32 *positions, guint count,
               gint32 *tokens, gint32 *labels);

guint64 data_bytes(const Data *data); /* length of the text */
void data_free(Data *data);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Data, data_free)
