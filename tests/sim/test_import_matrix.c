#include "tests/sim/import_case.h"

static const ImportOptions a100 = {.gpu = "a100-sxm-80gb"}, h100 = {.gpu = "h100-sxm-80gb"},
                           v100 = {.gpu = "v100-sxm-32gb"}, ada = {.gpu = "rtx-4090"},
                           bridged = {.gpu = "rtx-3090"}, nothing = {.gpu = NULL};

/* Four GPUs in a ring of direct links, an adapter, a legend. */
static const char *const four = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n"
                                "GPU0\t X \tNV4\tNV4\tNV4\tPXB\t0-15\t0\n"
                                "GPU1\tNV4\t X \tNV4\tNV4\tSYS\t0-15\t0\n"
                                "GPU2\tNV4\tNV4\t X \tNV4\tSYS\t\t1\n"
                                "GPU3\tNV4\tNV4\tNV4\t X \tSYS\t16-31\t1\n"
                                "NIC0\tPXB\tSYS\tSYS\tSYS\t X \t\t\n"
                                "\n"
                                "Legend:\n"
                                "  X    = Self\n"
                                "  NV#  = a bonded set of # NVLinks\n";

/* A matrix of @n GPUs in which GPUs a and b are connected as @path says. */
static char *matrix(guint n, const char *(*path)(guint a, guint b))
{
    GString *text = g_string_new("");

    for (guint b = 0; b < n; b++)
        g_string_append_printf(text, "\tGPU%u", b);
    g_string_append(text, "\tCPU Affinity\n");
    for (guint a = 0; a < n; a++) {
        g_string_append_printf(text, "GPU%u", a);
        for (guint b = 0; b < n; b++)
            g_string_append_printf(text, "\t%s", a == b ? " X " : path(a, b));
        g_string_append(text, "\t0-7\n");
    }
    return g_string_free(text, FALSE);
}

START_TEST(links_to_each_neighbour_add_up)
{
    g_autoptr(Topology) t = imported(four, &a100);

    ck_assert_uint_eq(t->nodes, 1);
    ck_assert_uint_eq(t->gpus_per_node, 4);
    ck_assert_uint_eq(t->networks->len, 1);
    ck_assert_str_eq(level_of(t, 0)->kind, "nvlink");
    ck_assert_uint_eq(level_of(t, 0)->span, 4);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 3 * 4 * 25e9);
    ck_assert_ptr_nonnull(strstr(t->source, "nvidia-smi topo -m"));
}
END_TEST

static const char *through_switch(guint a, guint b)
{
    (void)a, (void)b;
    return "NV18";
}

START_TEST(links_through_a_switch_are_not_counted_for_each_neighbour)
{
    g_autofree char *text = matrix(8, through_switch);
    g_autoptr(Topology) t = imported(text, &h100);

    ck_assert_uint_eq(level_of(t, 0)->span, 8);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 18 * 25e9);
}
END_TEST

static const char *one_lacks_a_link(guint a, guint b)
{
    return a == 2 || b == 2 ? "NV17" : "NV18";
}

START_TEST(a_gpu_that_lacks_a_link_of_its_switch_slows_the_others_and_is_named)
{
    g_autofree char *text = matrix(8, one_lacks_a_link);
    g_autoptr(Topology) t = imported(text, &h100);

    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 17 * 25e9);
    ck_assert_msg(strstr(t->source, "; GPU2 has 17 NVLinks, others 18") != NULL, "%s", t->source);
}
END_TEST

/* V100 cube mesh: within and across the halves, 6 links a GPU. */
static const char *cube_mesh(guint a, guint b)
{
    static const char *const half[4][4] = {{"X", "NV1", "NV1", "NV2"},
                                           {"NV1", "X", "NV2", "NV1"},
                                           {"NV1", "NV2", "X", "NV2"},
                                           {"NV2", "NV1", "NV2", "X"}};
    static const char *const across[4] = {"NV2", "NV2", "NV1", "NV1"};

    if (a / 4 == b / 4)
        return half[a % 4][b % 4];
    return a % 4 == b % 4 ? across[a % 4] : "SYS";
}

START_TEST(a_cube_mesh_is_one_island_with_all_links_of_a_gpu)
{
    g_autofree char *text = matrix(8, cube_mesh);
    g_autoptr(Topology) t = imported(text, &v100);

    ck_assert_uint_eq(t->networks->len, 1);
    ck_assert_uint_eq(level_of(t, 0)->span, 8);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 150e9);
    ck_assert_msg(strstr(t->source, "others") == NULL, "%s", t->source); /* as many of each */
}
END_TEST

static const char *two_islands(guint a, guint b)
{
    return a / 4 == b / 4 ? "NV6" : "SYS";
}

START_TEST(islands_are_a_level_inside_pcie)
{
    g_autofree char *text = matrix(8, two_islands);
    const ImportOptions nvl = {.gpu = "h200-nvl-141gb"};
    g_autoptr(Topology) t = imported(text, &nvl);

    ck_assert_uint_eq(t->networks->len, 2);
    ck_assert_uint_eq(level_of(t, 0)->span, 4);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 450e9);
    ck_assert_str_eq(level_of(t, 1)->kind, "pcie");
    ck_assert_uint_eq(level_of(t, 1)->span, 8);
    ck_assert_double_eq(level_of(t, 1)->bytes_per_s, 63e9);
}
END_TEST

static const char *one_bridge(guint a, guint b)
{
    return a + b == 1 ? "NV4" : "NODE";
}

START_TEST(an_odd_gpu_beside_a_bridged_pair_is_the_short_last_block)
{
    g_autofree char *text = matrix(3, one_bridge);
    g_autofree char *apart = matrix(4, one_bridge);
    g_autoptr(Topology) t = imported(text, &bridged);

    ck_assert_uint_eq(level_of(t, 0)->span, 2);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 4 * 14.0625e9);
    ck_assert_uint_eq(level_of(t, 1)->span, 3);
    check_refused(apart, &bridged, "GPU3 is not in such a block of neighbours");
}
END_TEST

static const char *two_switches(guint a, guint b)
{
    return a / 4 == b / 4 ? (a / 2 == b / 2 ? "PIX" : "PXB") : "SYS";
}

START_TEST(gpus_of_a_pcie_switch_share_its_uplink)
{
    g_autofree char *text = matrix(8, two_switches);
    g_autoptr(Topology) t = imported(text, &ada);

    ck_assert_uint_eq(t->networks->len, 2);
    ck_assert_uint_eq(level_of(t, 0)->span, 4);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 31.5e9);
    ck_assert_uint_eq(level_of(t, 1)->span, 8);
    ck_assert_double_eq(level_of(t, 1)->bytes_per_s, 31.5e9 / 4);
}
END_TEST

static const char *crossed(guint a, guint b)
{
    return (a + b) % 2 == 0 ? "NV4" : "PHB";
}

static const char *gpu2_lost(guint a, guint b)
{
    return a == 2 || b == 2 ? "NODE" : "NV18";
}

START_TEST(a_gpu_that_lost_its_nvlink_is_named)
{
    g_autofree char *text = matrix(8, gpu2_lost);
    g_autofree char *out_of_order = matrix(4, crossed);

    check_refused(text, &h100, "GPU2 has no NVLink while 7 others have");
    check_refused(out_of_order, &bridged, "GPU1 is not in such a block of neighbours");
}
END_TEST

START_TEST(one_gpu_needs_no_links)
{
    g_autoptr(Topology) t = imported("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n", &h100);

    ck_assert_uint_eq(t->gpus_per_node, 1);
    ck_assert_str_eq(level_of(t, 0)->kind, "pcie");
}
END_TEST

START_TEST(terminal_escapes_spaces_and_text_around_are_passed_over)
{
    g_autofree char *escaped = replaced(four, "\tGPU0", "$ nvidia-smi topo -m\n\033[4m\tGPU0");
    g_autofree char *ended = replaced(escaped, "NUMA Affinity", "NUMA Affinity\033[0m\r");
    g_autofree char *indented = replaced(ended, "GPU1\tNV4", "    GPU1   NV4");
    g_autofree char *spaced = replaced(indented, "GPU2\tNV4\tNV4", "\nGPU2 NV4   NV4");
    g_autoptr(Topology) t = imported(spaced, &a100), plain = imported(four, &a100);
    g_autofree char *one = topology_print(t), *other = topology_print(plain);
    g_autofree char *moved = replaced(other, "line 1 of", "line 2 of");

    ck_assert_str_eq(one, moved);
}
END_TEST

static const struct {
    const char *from, *to, *message;
} damaged[] = {
    {"GPU3\tNV4\tNV4\tNV4\t X \tSYS\t16-31\t1\n", "", "f:1: row GPU3 is missing"},
    {"GPU2\tNV4", "GPU1\tNV4", "f:4: row GPU1; allowed: each of GPU0 to GPU3 once"},
    {"GPU1\tNV4\t X \tNV4", "GPU1\tNV4\t X ", "f:3: row GPU1: 4 links before \"0-15\"; allowed: 5"},
    {"GPU1\tNV4\t X \tNV4\tNV4\tSYS", "GPU1\tNV4\t X \tNV4\tNV4SYS",
     "f:3: row GPU1: 3 links before \"NV4SYS\""},
    {"GPU1\tNV4\t X \tNV4", "GPU1\tNV4\tNV4\t X ", "f:3: row GPU1: \"NV4\" in column 1"},
    {"GPU1\tNV4\t X ", "GPU1\t X \t X ", "f:3: row GPU1: \"X\" in column 0"},
    {"GPU1\tNV4", "GPU1\tNV5", "GPU0 to GPU1 and GPU1 to GPU0 differ"},
    {"NIC0\tPXB\tSYS", "NIC0\tSYS", "f:6: row NIC0: 4 links"},
    {"GPU2\tGPU3", "GPU3\tGPU2", "f:1: column GPU3 follows GPU1"},
    {"Legend:", "\tGPU0\tGPU1", "f:8: a second matrix, after that of line 1"},
    {"Legend:", "nvidia-smi topo -mp", "f:8: topo -mp hides NVLink"},
    {"Legend:", "== ROCm System Management Interface ==", "f:8: rocm-smi"},
    {"\tGPU0\tGPU1", "\tGPU1\tGPU0", "f:1: none of what can be imported"},
};

START_TEST(damaged_listings_are_refused_with_their_line)
{
    g_autofree char *text = replaced(four, damaged[_i].from, damaged[_i].to);

    check_refused(text, &a100, damaged[_i].message);
}
END_TEST

static const char *all_sys(guint a, guint b)
{
    (void)a, (void)b;
    return "SYS";
}

static const char *all_nv12(guint a, guint b)
{
    (void)a, (void)b;
    return "NV12";
}

START_TEST(the_gpu_must_be_given_and_fit_the_links)
{
    const ImportOptions unknown = {.gpu = "h101"}, outside = {.gpu = "../localhost"},
                        amd = {.gpu = "mi300x"}, other = {.topology = "dgx-h100"},
                        part = {.gpu = "h200"}, several = {.gpu = "a10, l40s"};
    g_autofree char *hidden = matrix(8, all_sys), *switched = matrix(8, all_nv12);

    check_refused(four, &nothing, "f:1: topo -m does not say which GPUs these are; give --gpu");
    check_refused(four, &unknown, "--gpu \"h101\" is unknown");
    check_refused(four, &part, "(did you mean \"h200-");
    check_refused(four, &part, "allowed: one of a10, ");
    check_refused(four, &several, "unsupported: mixed GPUs");
    check_refused(four, &outside, "--gpu \"../localhost\" is unknown");
    check_refused(four, &amd, "the NVLink and PCIe rates of --gpu mi300x are not known");
    check_refused(four, &ada, "GPU0 and GPU1 are joined by 4 NVLinks; rtx-4090 has 0");
    check_refused(four, &other, "allowed: --gpu NAME in place of --topology");
    check_refused(switched, &h100,
                  "f:1: GPU0 has 12 NVLinks to each of its neighbours, through a switch; "
                  "h100-sxm-80gb has 18; allowed: the --gpu of this node");
    check_refused(hidden, &a100, "no NVLink between GPUs, but a100-sxm-80gb is on a board");
}
END_TEST

START_TEST(random_damage_never_crashes)
{
    check_damage(four, &a100, 71);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("import_matrix");
    TCase *tcase = tcase_create("import_matrix");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, links_to_each_neighbour_add_up);
    tcase_add_test(tcase, links_through_a_switch_are_not_counted_for_each_neighbour);
    tcase_add_test(tcase, a_gpu_that_lacks_a_link_of_its_switch_slows_the_others_and_is_named);
    tcase_add_test(tcase, a_cube_mesh_is_one_island_with_all_links_of_a_gpu);
    tcase_add_test(tcase, islands_are_a_level_inside_pcie);
    tcase_add_test(tcase, an_odd_gpu_beside_a_bridged_pair_is_the_short_last_block);
    tcase_add_test(tcase, gpus_of_a_pcie_switch_share_its_uplink);
    tcase_add_test(tcase, a_gpu_that_lost_its_nvlink_is_named);
    tcase_add_test(tcase, one_gpu_needs_no_links);
    tcase_add_test(tcase, terminal_escapes_spaces_and_text_around_are_passed_over);
    tcase_add_loop_test(tcase, damaged_listings_are_refused_with_their_line, 0,
                        G_N_ELEMENTS(damaged));
    tcase_add_test(tcase, the_gpu_must_be_given_and_fit_the_links);
    tcase_add_test(tcase, random_damage_never_crashes);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
