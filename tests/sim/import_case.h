/* What the tests of sim/import share. */
#pragma once

#include "sim/base/error.h"
#include "sim/import/import.h"
#include "tests/mutate.h"
#include "tests/suite.h"

#include <string.h>
#include <unistd.h>

/* The result must print, parse back and print the same. */
static inline void check_prints_back(const Topology *topology)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *printed = topology_print(topology);
    g_autoptr(Topology) again = topology_parse(printed, "printed", "nowhere", &error);

    ck_assert_msg(again != NULL, "%s\n%s", error != NULL ? error->message : "", printed);
    g_autofree char *printed_again = topology_print(again);
    ck_assert_str_eq(printed_again, printed);
}

static inline Topology *imported(const char *text, const ImportOptions *options)
{
    g_autoptr(GError) error = NULL;
    Topology *topology = import_parse(text, "f", options, "topologies", &error);

    ck_assert_msg(topology != NULL, "%s", error != NULL ? error->message : "");
    check_prints_back(topology);
    return topology;
}

/* Refused in one line that holds @message. */
static inline void check_refused(const char *text, const ImportOptions *options,
                                 const char *message)
{
    g_autoptr(GError) error = NULL;

    ck_assert_msg(import_parse(text, "f", options, "topologies", &error) == NULL, "%s", text);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, message) != NULL, "%s\nnot: %s", error->message, message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}

static inline const NetworkLevel *level_of(const Topology *topology, guint i)
{
    ck_assert_uint_lt(i, topology->networks->len);
    return &g_array_index(topology->networks, NetworkLevel, i);
}

/* Random damage gives an error or a topology that prints back, never a crash. */
static inline void check_damage(const char *sample, const ImportOptions *options, guint32 seed)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);
    guint accepted = 0;

    for (guint i = 0; i < 800; i++) {
        g_autofree char *text = mutate(sample, random);
        g_autoptr(GError) error = NULL;
        g_autoptr(Topology) topology = import_parse(text, "f", options, "topologies", &error);

        ck_assert_msg((topology == NULL) == (error != NULL), "%s", text);
        if (topology == NULL) {
            ck_assert_msg(strchr(error->message, '\n') == NULL, "%s", error->message);
            ck_assert(g_utf8_validate(error->message, -1, NULL));
            continue;
        }
        accepted++;
        check_prints_back(topology);
    }
    ck_assert_uint_gt(accepted, 0);
}
