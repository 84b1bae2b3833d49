/* Configuration files of other programs, whatever their syntax, as a list of "path = value". */
#pragma once

#include <glib.h>

typedef struct {
    char *path;  /* "parallelism.tensor_parallel_degree"; "-" stands for an element of a list */
    char *value; /* without quotes; lists and inline tables as they stand */
    guint line;  /* from 1; 0 where the syntax keeps no lines */
} FlatEntry;

typedef struct {
    char *source;
    GArray *entries;  /* FlatEntry, as in the text */
    GPtrArray *asked; /* const char *: what flat_find() was asked for */
} Flat;

/* ERROR_INPUT, "source:line: ...", on what can't be read. */
Flat *flat_parse_toml(const char *text, const char *source,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
Flat *flat_parse_json(const char *text, const char *source,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Mappings by indentation, scalars, lists of either; ${path} and ${NAME:default} are resolved. */
Flat *flat_parse_yaml(const char *text, const char *source,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Options of a command line in a script: "--some-name 8", "--some-name=8" and "--flag" ("true"),
 * as "some_name"; $NAME, ${NAME} and ${NAME:-default} where the script assigns NAME. */
Flat *flat_parse_options(const char *text, const char *source);

void flat_free(Flat *flat);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Flat, flat_free)

/* The entry whose path is @name, or else the last one whose path ends in ".@name"; NULL when there
 * is none, or it says nothing: null, ~, auto, empty. */
const FlatEntry *flat_find(const Flat *flat, const char *name);

/* FALSE, with the entry, where one is asked for by no name but resembles one that was asked for in
 * vain: it is misspelt.  Short names resemble each other anyway. */
gboolean flat_check_names(const Flat *flat, GError **error);

/* Sets "source:line: path = value: ..." and returns FALSE. */
gboolean flat_refuse(const Flat *flat, const FlatEntry *entry, const char *allowed, GError **error);
