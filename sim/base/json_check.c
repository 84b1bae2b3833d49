#include "sim/base/json_check.h"

#include "sim/base/error.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef struct {
    const char *text, *source;
    const char *at; /* the next character */
    GError **error;
} Scan;

static gboolean check_value(Scan *scan, guint depth);

/* Always FALSE, with the place of scan->at. */
static gboolean refuse(const Scan *scan, const char *wanted)
{
    guint line = 1, column = 1;

    for (const char *c = scan->text; c < scan->at; c = g_utf8_next_char(c)) {
        column++;
        if (*c == '\n') {
            line++;
            column = 1;
        }
    }
    if (*scan->at == '\0')
        return fail(scan->error, ERROR_INPUT, "%s:%u:%u: the text ends; allowed here: %s",
                    scan->source, line, column, wanted);
    const gunichar found = g_utf8_get_char(scan->at);

    if (!g_unichar_isprint(found))
        return fail(scan->error, ERROR_INPUT, "%s:%u:%u: character U+%04X; allowed here: %s",
                    scan->source, line, column, found, wanted);
    char utf8[7] = "";

    g_unichar_to_utf8(found, utf8);
    return fail(scan->error, ERROR_INPUT, "%s:%u:%u: '%s'; allowed here: %s", scan->source, line,
                column, utf8, wanted);
}

static void skip_space(Scan *scan)
{
    scan->at += strspn(scan->at, " \t\r\n");
}

/* Steps over @c when it is next, else refuses. */
static gboolean expect(Scan *scan, char c, const char *wanted)
{
    if (*scan->at != c)
        return refuse(scan, wanted);
    scan->at++;
    return TRUE;
}

static gboolean check_unicode_escape(Scan *scan, guint *unit)
{
    *unit = 0;
    for (guint i = 0; i < 4; i++) {
        if (!g_ascii_isxdigit(*scan->at))
            return refuse(scan, "four hexadecimal digits");
        *unit = *unit * 16 + (guint)g_ascii_xdigit_value(*scan->at++);
    }
    return *unit != 0 || refuse(scan, "any character but U+0000");
}

/* After the backslash.  Surrogates must come in pairs. */
static gboolean check_escape(Scan *scan)
{
    guint high, low;

    if (*scan->at == '\0' || strchr("\"\\/bfnrtu", *scan->at) == NULL)
        return refuse(scan, "one of \" \\ / b f n r t u");
    if (*scan->at++ != 'u')
        return TRUE;
    if (!check_unicode_escape(scan, &high))
        return FALSE;
    if (high < 0xD800 || high > 0xDFFF)
        return TRUE;
    if (high > 0xDBFF || !g_str_has_prefix(scan->at, "\\u"))
        return refuse(scan, "a pair of surrogates");
    scan->at += 2;
    if (!check_unicode_escape(scan, &low))
        return FALSE;
    return (low >= 0xDC00 && low <= 0xDFFF) || refuse(scan, "a pair of surrogates");
}

static gboolean check_string(Scan *scan)
{
    if (!expect(scan, '"', "a string in double quotes"))
        return FALSE;
    while (*scan->at != '"') {
        if ((guchar)*scan->at < 0x20)
            return refuse(scan, "characters of a string, then its closing quote");
        if (*scan->at++ == '\\' && !check_escape(scan))
            return FALSE;
    }
    scan->at++;
    return TRUE;
}

static gboolean check_digits(Scan *scan)
{
    if (!g_ascii_isdigit(*scan->at))
        return refuse(scan, "a digit");
    while (g_ascii_isdigit(*scan->at))
        scan->at++;
    return TRUE;
}

static gboolean check_number(Scan *scan)
{
    const char *start = scan->at;
    gboolean integer = TRUE;

    if (*scan->at == '-')
        scan->at++;
    if (scan->at[0] == '0' && g_ascii_isdigit(scan->at[1]))
        return refuse(scan, "a number without leading zeros");
    if (!check_digits(scan))
        return FALSE;
    if (*scan->at == '.') {
        integer = FALSE;
        scan->at++;
        if (!check_digits(scan))
            return FALSE;
    }
    if (*scan->at == 'e' || *scan->at == 'E') {
        integer = FALSE;
        scan->at++;
        if (*scan->at == '+' || *scan->at == '-')
            scan->at++;
        if (!check_digits(scan))
            return FALSE;
    }
    errno = 0;
    if (integer)
        g_ascii_strtoll(start, NULL, 10);
    if (errno == ERANGE || !isfinite(g_ascii_strtod(start, NULL))) {
        scan->at = start;
        return refuse(scan, "integers of 64 bits and numbers below 1.8e308");
    }
    return TRUE;
}

/* After the '{' or '['. */
static gboolean check_members(Scan *scan, gboolean object, guint depth)
{
    const char close = object ? '}' : ']';

    skip_space(scan);
    if (*scan->at == close) {
        scan->at++;
        return TRUE;
    }
    for (;;) {
        skip_space(scan);
        if (object) {
            if (!check_string(scan))
                return FALSE;
            skip_space(scan);
            if (!expect(scan, ':', "':'"))
                return FALSE;
        }
        if (!check_value(scan, depth))
            return FALSE;
        skip_space(scan);
        if (*scan->at != ',')
            return expect(scan, close, object ? "',' or '}'" : "',' or ']'");
        scan->at++;
    }
}

static gboolean check_value(Scan *scan, guint depth)
{
    static const char *const words[] = {"true", "false", "null"};

    skip_space(scan);
    if (*scan->at == '{' || *scan->at == '[') {
        if (depth == MAX_DEPTH)
            return refuse(scan, "values nested at most 64 deep");
        return check_members(scan, *scan->at++ == '{', depth + 1);
    }
    if (*scan->at == '"')
        return check_string(scan);
    if (*scan->at == '-' || g_ascii_isdigit(*scan->at))
        return check_number(scan);
    for (guint i = 0; i < G_N_ELEMENTS(words); i++) {
        if (g_str_has_prefix(scan->at, words[i])) {
            scan->at += strlen(words[i]);
            return TRUE;
        }
    }
    return refuse(scan, "an object, an array, a string, a number, true, false or null");
}

gboolean json_check(const char *text, const char *source, GError **error)
{
    Scan scan = {.text = text, .source = source, .at = text, .error = error};

    if (!g_utf8_validate(text, -1, &scan.at))
        return fail(error, ERROR_INPUT, "%s: byte %" G_GSIZE_FORMAT " is not UTF-8", source,
                    (gsize)(scan.at - text));
    scan.at = text;
    if (!check_value(&scan, 0))
        return FALSE;
    skip_space(&scan);
    return *scan.at == '\0' || refuse(&scan, "the end of the text");
}
