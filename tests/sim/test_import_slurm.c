#include "sim/import/hostlist.h"
#include "tests/sim/import_case.h"

static const ImportOptions dgx = {.topology = "dgx-h100"}, nothing = {.gpu = NULL};

static const char *const tree = "# two rooms\n"
                                "SwitchName=root Switches=room[1-2]\n"
                                "SwitchName=room1 Switches=rack1,rack2 LinkSpeed=400\n"
                                "SwitchName=room2 Switches=rack3\n"
                                "SwitchName=rack1 Nodes=n[01-04]\n"
                                "SwitchName=rack2 Nodes=n[05-08]\n"
                                "switchname=rack3 nodes=n[09-12],n13,n14\n";

static const char *const blocks = "BlockName=b1 Nodes=n[001-018] # a rack\n"
                                  "BlockName=b2 Nodes=n[019-036]\n"
                                  "BlockName=b3 Nodes=n[037-054]\n"
                                  "BlockName=b4 Nodes=n[055-072]\n"
                                  "BlockSizes=16,32\n";

START_TEST(host_lists_are_expanded)
{
    static const struct {
        const char *list, *names; /* NULL: refused */
    } cases[] = {
        {"a", "a"},
        {"a,b", "a b"},
        {"n[1-3]", "n1 n2 n3"},
        {"n[08-11]", "n08 n09 n10 n11"},
        {"n[1,3-4],m2", "n1 n3 n4 m2"},
        {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"},
        {"s.1.[9-10]-x", "s.1.9-x s.1.10-x"},
        {"", NULL},
        {"a,", NULL},
        {",a", NULL},
        {"n[1-3", NULL},
        {"n1-3]", NULL},
        {"n[]", NULL},
        {"n[3-1]", NULL},
        {"n[1-]", NULL},
        {"n[a-b]", NULL},
        {"n[1-2][", NULL},
        {"n[0-9999999]", NULL},
        {"n[0-99999999999]", NULL},
        {"n[0-9999]m[0-9999]", NULL},
    };

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GPtrArray) names = hostlist_expand(cases[i].list, &error);

        ck_assert_msg((names == NULL) == (cases[i].names == NULL), "%s", cases[i].list);
        if (names == NULL) {
            ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
            continue;
        }
        g_ptr_array_add(names, NULL);
        g_autofree char *joined = g_strjoinv(" ", (char **)names->pdata);
        ck_assert_str_eq(joined, cases[i].names);
    }
}
END_TEST

/* Racks of 4, 4 and 6 nodes: blocks of 2 lie within one each; rooms of 8 and 6. */
START_TEST(a_tree_gives_tiers_of_nodes_that_a_switch_joins)
{
    g_autofree char *equal = replaced(tree, "n[09-12],n13,n14", "n[09-12]");
    g_autoptr(Topology) t = imported(tree, &dgx), e = imported(equal, &dgx);

    ck_assert_uint_eq(t->nodes, 14);
    ck_assert_uint_eq(level_of(t, 0)->span, 8);
    ck_assert_uint_eq(level_of(t, 1)->span, 2 * 8);
    ck_assert_uint_eq(level_of(t, 2)->span, 8 * 8); /* the last room is the shorter */
    ck_assert_uint_eq(level_of(t, 3)->span, 0);
    ck_assert_uint_eq(e->nodes, 12);
    ck_assert_uint_eq(level_of(e, 1)->span, 4 * 8);
    ck_assert_uint_eq(level_of(e, 2)->span, 8 * 8);
    for (guint i = 1; i < 4; i++) {
        ck_assert_str_eq(level_of(e, i)->kind, "infiniband");
        ck_assert_double_eq(level_of(e, i)->bytes_per_s, 50e9);
    }
    ck_assert_ptr_nonnull(strstr(t->source, "Slurm topology.conf"));
}
END_TEST

START_TEST(blocks_give_tiers_and_blocks_of_blocks)
{
    g_autoptr(Topology) t = imported(blocks, &dgx);

    ck_assert_uint_eq(t->nodes, 72);
    ck_assert_uint_eq(t->networks->len, 4);
    ck_assert_uint_eq(level_of(t, 1)->span, 18 * 8);
    ck_assert_uint_eq(level_of(t, 2)->span, 36 * 8);
    ck_assert_uint_eq(level_of(t, 3)->span, 0);
}
END_TEST

START_TEST(a_block_that_is_an_nvlink_domain_is_not_a_tier_of_its_own)
{
    const ImportOptions nvl72 = {.topology = "gb200-nvl72"};
    g_autoptr(Topology) t = imported(blocks, &nvl72);

    ck_assert_str_eq(level_of(t, 0)->kind, "nvlink");
    ck_assert_uint_eq(level_of(t, 0)->span, 72);
    ck_assert_uint_eq(level_of(t, 1)->span, 2 * 72);
    ck_assert_uint_eq(level_of(t, 2)->span, 0);
}
END_TEST

START_TEST(importing_twice_keeps_names_apart)
{
    g_autoptr(Topology) once = imported(tree, &dgx);
    g_autofree char *path = NULL, *printed = topology_print(once);
    const int fd = g_file_open_tmp("topology-XXXXXX", &path, NULL);

    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert(g_file_set_contents(path, printed, -1, NULL));
    const ImportOptions again = {.topology = path};
    g_autoptr(Topology) twice = imported(blocks, &again);

    unlink(path);
    ck_assert_uint_eq(twice->nodes, 72);
    ck_assert_uint_eq(twice->networks->len, once->networks->len + 2);
}
END_TEST

static const struct {
    const char *from, *to, *message;
} damaged[] = {
    {"Switches=room[1-2]", "Switches=room[1-3]", "f:2: switch room3 is not in the file"},
    {"Switches=room[1-2]", "Switches=room1",
     "f:4: switches root (line 2) and room2 have no common"},
    {"Switches=room[1-2]", "Switches=room[1-2", "f:2: \"room[1-2\": not a list of names"},
    {"Switches=rack3", "Switches=rack2", "f:4: switch rack2 is below another already, in line 3"},
    {"Switches=rack3", "Switches=rack3 Nodes=x", "f:4: room2; allowed: Nodes= or Switches="},
    {"Switches=rack3", "", "f:4: room2; allowed: Nodes= or Switches="},
    {"Switches=rack3", "Switchs=rack3", "f:4: \"Switchs=rack3\"; allowed: SwitchName="},
    {"Switches=rack3", "Switches=root,rack3", "the switches form a circle"},
    {"Switches=rack3", "Switches=room2", "f:4: switch room2 is below another already"},
    {"# two rooms\n", "SwitchName=x Switches=y\nSwitchName=y Switches=x\n", "f:1: no nodes below"},
    {"# two rooms\n", "SwitchName=x Switches=y,z\nSwitchName=y Switches=x\nSwitchName=z Nodes=q\n",
     "the switches above form a circle"},
    {"SwitchName=rack2", "SwitchName=rack1", "f:6: rack1 is already there"},
    {"n[05-08]", "n[04-07]", "f:6: node n04 is already in line 5"},
    {"switchname=rack3", "BlockName=rack3", "f:7: switches and blocks in one file"},
    {"switchname=rack3", "nodes=rack3", "f:7: \"nodes=n[09-12],n13,n14\"; allowed: each key once"},
    {"# two rooms", "BlockSizes=4,6", "f:1: BlockSizes: \"6\"; allowed: numbers of nodes"},
    {"# two rooms", "two rooms", "f:1: \"two\"; allowed: SwitchName="},
};

START_TEST(damaged_trees_are_refused_with_their_line)
{
    g_autofree char *text = replaced(tree, damaged[_i].from, damaged[_i].to);

    check_refused(text, &dgx, damaged[_i].message);
}
END_TEST

START_TEST(what_the_nodes_are_must_be_given)
{
    const ImportOptions gpu = {.gpu = "h100-sxm-80gb"}, box = {.topology = "pcie-8x-l40s"},
                        here = {.topology = "localhost"};
    g_autofree char *small = replaced(blocks, "n[001-018]", "n[001-008]");

    check_refused(tree, &nothing, "f:2: Slurm does not say what its nodes are; give --topology");
    check_refused(tree, &gpu, "f:2: Slurm's nodes and switches; allowed: --topology");
    check_refused(tree, &box, "--topology pcie-8x-l40s has no network between nodes");
    check_refused(tree, &here, "--topology localhost has no network between nodes");
    check_refused(small, &dgx, "f:1: a block of 8 nodes; allowed: at least 16");
}
END_TEST

START_TEST(random_damage_never_crashes)
{
    check_damage(tree, &dgx, 73);
    check_damage(blocks, &dgx, 74);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("import_slurm");
    TCase *tcase = tcase_create("import_slurm");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, host_lists_are_expanded);
    tcase_add_test(tcase, a_tree_gives_tiers_of_nodes_that_a_switch_joins);
    tcase_add_test(tcase, blocks_give_tiers_and_blocks_of_blocks);
    tcase_add_test(tcase, a_block_that_is_an_nvlink_domain_is_not_a_tier_of_its_own);
    tcase_add_test(tcase, importing_twice_keeps_names_apart);
    tcase_add_loop_test(tcase, damaged_trees_are_refused_with_their_line, 0, G_N_ELEMENTS(damaged));
    tcase_add_test(tcase, what_the_nodes_are_must_be_given);
    tcase_add_test(tcase, random_damage_never_crashes);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
