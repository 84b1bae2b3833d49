/* Strict reading of JSON.  json-glib alone takes 010 for 8, wraps large integers, keeps the last of
 * two members of one name and answers 0 for what is missing; here all of these are errors. */
#pragma once

#include <glib.h>

typedef struct JsonText JsonText;

/* @text must hold one object.  Syntax errors are "@source:line:column: ...".  ERROR_INPUT. */
JsonText *json_parse(const char *text, const char *source,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
void json_free(JsonText *json);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(JsonText, json_free)

/* What was given to json_parse() as @source. */
const char *json_source(const JsonText *json);

/* @field is a path from the root: "layout.tp", "schedule.stages.3.0".  An error names source,
 * field, value and what is allowed (ERROR_INPUT).  A number is an integer when its value is one:
 * 4096.0 is, "4096" is not. */

/* Whether the field is there and not null. */
gboolean json_has(const JsonText *json, const char *field);

/* Whether it is there as null. */
gboolean json_is_null(const JsonText *json, const char *field);

gboolean json_uint(const JsonText *json, const char *field, guint64 min, guint64 max, guint64 *out,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_uint32(const JsonText *json, const char *field, guint min, guint max, guint *out,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_double(const JsonText *json, const char *field, double min, double max, double *out,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_bool(const JsonText *json, const char *field, gboolean *out,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* *out is borrowed from @json. */
gboolean json_string(const JsonText *json, const char *field, const char **out,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same where the field may be absent or null: then *out stays as it is. */
gboolean json_optional_uint32(const JsonText *json, const char *field, guint min, guint max,
                              guint *out, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_optional_double(const JsonText *json, const char *field, double min, double max,
                              double *out, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_optional_bool(const JsonText *json, const char *field, gboolean *out,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean json_optional_string(const JsonText *json, const char *field, const char **out,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Elements of an array. */
gboolean json_length(const JsonText *json, const char *field, guint *out,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A member that is an object, as JSON text of its own. */
char *json_object_text(const JsonText *json, const char *field,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
