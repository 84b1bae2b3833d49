#include "tests/sim/import_case.h"

static const ImportOptions nothing = {.gpu = NULL}, h100 = {.gpu = "h100-sxm-80gb"},
                           a100_pcie = {.gpu = "a100-pcie-80gb"};

/* Two H100 under a PCIe switch with links to an NVSwitch, two adapters of 400 Gb/s. */
static const char *const two =
    "<!-- a dump -->\n"
    "<system version=\"1\">\n"
    "  <cpu numaid=\"0\">\n"
    "    <pci busid=\"0000:01:00.0\" class=\"0x060400\">\n"
    "      <pci busid=\"0000:1b:00.0\" class=\"0x030200\" device=\"0x2330\">\n"
    "        <gpu dev=\"1\" sm=\"90\">\n"
    "          <nvlink target=\"0000:05:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "          <nvlink target=\"0000:06:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:1a:00.0\" class=\"0x030200\" device=\"0x2330\">\n"
    "        <gpu dev=\"0\" sm=\"90\">\n"
    "          <nvlink target=\"0000:05:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "          <nvlink target=\"0000:06:00.0\" count=\"9\" tclass=\"0x068000\"/>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:1c:00.0\" class=\"0x020700\">\n"
    "        <nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\"/></nic>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:1d:00.0\" class=\"0x020000\">\n"
    "        <nic><net name=\"mlx5_1\" dev=\"1\" speed=\"400000\"/></nic>\n"
    "      </pci>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "</system>\n";

/* What clouds ship: no <gpu>, no <nvlink>, no <net>. */
static const char *const bare = "<system version=\"1\">\n"
                                "  <cpu numaid=\"0\">\n"
                                "    <pci busid=\"ffff:ff:01.0\" class=\"0x060400\">\n"
                                "      <pci busid=\"0002:00:00.0\" class=\"0x030200\"/>\n"
                                "      <pci busid=\"0001:00:00.0\" class=\"0x030200\"/>\n"
                                "    </pci>\n"
                                "    <pci busid=\"ffff:ff:02.0\" class=\"0x060400\">\n"
                                "      <pci busid=\"0003:00:00.0\" class=\"0x030200\"/>\n"
                                "      <pci busid=\"0004:00:00.0\" class=\"0x030200\"/>\n"
                                "    </pci>\n"
                                "  </cpu>\n"
                                "</system>\n";

/* Four adapters, Mb/s each, beside one H100 in a slot of 63 GB/s. */
static const struct {
    guint speed;
    double bytes_per_s;
} rails[] = {
    {400000, 50e9}, /* nccl-tests 232: one GPU has not 200 GB/s */
    {800000, 63e9}, /* the slot is narrower than one */
    {200000, 50e9}, /* two of them */
    {100000, 50e9}, /* all */
};

START_TEST(a_gpu_has_the_whole_adapters_that_its_slot_takes)
{
    g_autoptr(GString) text = g_string_new("<system version=\"1\"><cpu numaid=\"0\">"
                                           "<pci busid=\"0000:1b:00.0\" class=\"0x030200\" "
                                           "device=\"0x2330\"><gpu dev=\"0\" sm=\"90\"/></pci>");

    for (guint i = 0; i < 4; i++)
        g_string_append_printf(text,
                               "<pci busid=\"0000:2%u:00.0\" class=\"0x020700\"><nic><net "
                               "name=\"mlx5_%u\" dev=\"%u\" speed=\"%u\"/></nic></pci>",
                               i, i, i, rails[_i].speed);
    g_string_append(text, "</cpu></system>");
    g_autoptr(Topology) t = imported(text->str, &nothing);
    ck_assert_uint_eq(t->gpus_per_node, 1);
    ck_assert_uint_eq(t->networks->len, 1);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, rails[_i].bytes_per_s);
}
END_TEST

START_TEST(links_to_switches_and_adapters_are_added_up)
{
    g_autoptr(Topology) t = imported(two, &nothing);

    ck_assert_str_eq(t->gpu.name, "h100-sxm-80gb"); /* from the PCI device */
    ck_assert_uint_eq(t->gpus_per_node, 2);
    ck_assert_uint_eq(t->networks->len, 2);
    ck_assert_uint_eq(level_of(t, 0)->span, 2);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 18 * 25e9);
    ck_assert_str_eq(level_of(t, 1)->kind, "network");
    ck_assert_uint_eq(level_of(t, 1)->span, 0);
    ck_assert_double_eq(level_of(t, 1)->bytes_per_s, 2 * 50e9 / 2);
}
END_TEST

START_TEST(nvlink_that_a_file_leaves_out_is_assumed_and_said)
{
    g_autoptr(Topology) t = imported(bare, &h100);

    ck_assert_uint_eq(t->networks->len, 1);
    ck_assert_uint_eq(level_of(t, 0)->span, 4);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 450e9);
    ck_assert_ptr_nonnull(strstr(t->source, "NVLink is not in it: assumed"));
}
END_TEST

START_TEST(cards_have_the_pcie_switches_of_the_file)
{
    g_autoptr(Topology) t = imported(bare, &a100_pcie);

    ck_assert_ptr_null(strstr(t->source, "NVLink"));
    ck_assert_uint_eq(t->networks->len, 2);
    ck_assert_uint_eq(level_of(t, 0)->span, 2);
    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 31.5e9);
    ck_assert_uint_eq(level_of(t, 1)->span, 4);
    ck_assert_double_eq(level_of(t, 1)->bytes_per_s, 31.5e9 / 2);
}
END_TEST

START_TEST(a_bridge_joins_the_gpu_that_it_names)
{
    const char *pair = "<system><cpu>\n"
                       "<pci busid=\"A\"><gpu><nvlink target=\"B\" count=\"12\"/></gpu></pci>\n"
                       "<pci busid=\"B\"><gpu><nvlink target=\"A\" count=\"12\"/></gpu></pci>\n"
                       "</cpu></system>";
    g_autofree char *itself = replaced(pair, "target=\"B\"", "target=\"A\"");
    g_autofree char *nobody = replaced(pair, "target=\"B\"", "target=\"C\"");
    g_autofree char *one_way = replaced(pair, "count=\"12\"", "count=\"11\"");
    g_autoptr(Topology) t = imported(pair, &a100_pcie);

    ck_assert_double_eq(level_of(t, 0)->bytes_per_s, 300e9);
    check_refused(itself, &a100_pcie, "f:2: <nvlink target=\"A\"> is the GPU itself");
    check_refused(nobody, &a100_pcie, "f:2: <nvlink target=\"C\">; allowed: the address of");
    check_refused(one_way, &a100_pcie, "GPU0 has 11 NVLinks to GPU1, which has 12 back");
}
END_TEST

START_TEST(many_nodes_of_xml_are_no_limit)
{
    GString *text = g_string_new("<system><cpu>");

    for (guint i = 0; i < 64; i++)
        g_string_append_printf(text, "<pci busid=\"%u\" class=\"0x020000\"/>", i);
    for (guint i = 0; i < 16; i++)
        g_string_append_printf(text, "<pci busid=\"gpu%02u\" class=\"0x030200\"/>", i);
    for (guint i = 0; i < 1000; i++)
        g_string_append_printf(text, "<pci busid=\"other%u\"/>", i);
    g_string_append(text, "</cpu></system>");
    g_autofree char *xml = g_string_free(text, FALSE);
    g_autoptr(Topology) t = imported(xml, &h100);

    ck_assert_uint_eq(t->gpus_per_node, 16);
    g_autofree char *printed = topology_print(t);
    ck_assert_ptr_nonnull(strstr(printed, "nics=64"));
}
END_TEST

/* Dumps that NCCL itself stumbled over: issues 379, 1125, 1505. */
static const struct {
    const char *from, *to;
    const char *said;   /* NULL: nothing had to be assumed */
    double bytes_per_s; /* of the network, a GPU */
} lacking[] = {
    /* a socket none of whose GPUs is used */
    {"</cpu>", "</cpu><cpu numaid=\"1\"/>", NULL, 50e9},
    {"<cpu numaid=\"0\">", "<cpu>", NULL, 50e9},
    {"<system version=\"1\">", "<system>", NULL, 50e9},
    {"<gpu dev=\"1\" sm=\"90\">", "<gpu sm=\"90\">", NULL, 50e9},
    /* an adapter on USB, which has no PCI address; and one without a speed, of 1.25 GB/s then */
    {"</cpu>", "<nic><net name=\"usb0\" speed=\"0\"/></nic></cpu>",
     "; the speed of 1 adapter is not in it: assumed, 10 Gb/s as NCCL does", 50.625e9},
    {"</cpu>", "<pci class=\"0x0c0330\"><nic><net name=\"usb0\" speed=\"425\"/></nic></pci></cpu>",
     NULL, 50.0265625e9},
    {" speed=\"400000\"", "", "; the speed of 1 adapter is not in it: assumed, 10 Gb/s", 25.625e9},
    {"speed=\"400000\"", "speed=\"-1\"", "; the speed of 1 adapter is not in it: assumed, 10 Gb/s",
     25.625e9},
    {"busid=\"0000:1c:00.0\" ", "", NULL, 50e9},
};

START_TEST(what_a_file_lacks_is_assumed_and_said)
{
    g_autofree char *text = replaced(two, lacking[_i].from, lacking[_i].to);
    g_autoptr(Topology) t = imported(text, &nothing);

    ck_assert_uint_eq(t->gpus_per_node, 2);
    ck_assert_double_eq_tol(level_of(t, 1)->bytes_per_s, lacking[_i].bytes_per_s, 1e3);
    if (lacking[_i].said != NULL)
        ck_assert_msg(strstr(t->source, lacking[_i].said) != NULL, "%s", t->source);
    else
        ck_assert_msg(strstr(t->source, "is not in it") == NULL, "%s", t->source);
}
END_TEST

static const struct {
    const char *from, *to, *message;
} damaged[] = {
    {"</system>", "", "not whole XML"},
    {"<system version", "<graphs version",
     "f:2: <graphs>; allowed: <system>, NCCL's description of a node (NCCL_TOPO_DUMP_FILE; "
     "NCCL_GRAPH_DUMP_FILE is another)"},
    {"busid=\"0000:1a:00.0\" ", "", "f:11: <pci> of a GPU without busid; allowed: its PCI address"},
    {"<cpu numaid=\"0\">", "<cpu host_hash=\"0x1\"/>\n<cpu host_hash=\"0x2\">",
     "f:4: another host than that of line 3; allowed: one node a file"},
    {"busid=\"0000:1a:00.0\"", "busid=\"0000:1b:00.0\"",
     "f:11: the GPU 0000:1b:00.0 is already in"},
    {"busid=\"0000:1a:00.0\"", "busid=\"\"", "f:11: <pci busid=\"\">"},
    {"count=\"9\"", "count=\"nine\"", "f:7: <nvlink> count=\"nine\"; allowed: an integer"},
    {"speed=\"400000\"", "speed=\"-2\"", "f:18: <net> speed=\"-2\""},
    {"speed=\"400000\"", "speed=\"4000x\"", "f:18: <net> speed=\"4000x\"; allowed: an integer"},
    {"device=\"0x2330\"", "device=\"0x20b0\"",
     "f:5: another GPU than that of line 11; unsupported: mixed GPUs"},
    {"<cpu numaid=\"0\">", "<nvlink target=\"x\" count=\"1\"/><cpu>",
     "f:3: <nvlink> outside <gpu>"},
    {"<cpu numaid=\"0\">", "<gpu dev=\"0\"/><cpu>", "f:3: <gpu> outside <pci>"},
};

START_TEST(damaged_files_are_refused_with_their_line)
{
    g_autofree char *text = replaced(two, damaged[_i].from, damaged[_i].to);

    check_refused(text, &nothing, damaged[_i].message);
}
END_TEST

START_TEST(what_is_missing_is_asked_for)
{
    check_refused(bare, &nothing, "does not say which GPUs these are; give --gpu NAME");
    check_refused("<system><cpu><pci busid=\"0000:00:16.0\"/></cpu></system>", &h100,
                  "f:1: no GPU: the file leaves them for NCCL to find");
}
END_TEST

/* The PCI device decides, else the compute capability; the size of memory is the caller's. */
START_TEST(a_gpu_that_the_file_contradicts_is_refused)
{
    const ImportOptions a100 = {.gpu = "a100-sxm-40gb"}, larger = {.gpu = "h100-sxm-96gb"};
    g_autofree char *no_device = replaced(two, " device=\"0x2330\"", "");
    g_autofree char *mixed = replaced(two, "dev=\"1\" sm=\"90\"", "dev=\"1\" sm=\"80\"");
    g_autofree char *no_device_at_all = replaced(no_device, " device=\"0x2330\"", "");
    g_autoptr(Topology) t = imported(two, &larger);

    ck_assert_str_eq(t->gpu.name, "h100-sxm-96gb");
    check_refused(two, &a100,
                  "f:11: device 0x2330 is h100-sxm-80gb, not a100-sxm-40gb; allowed: --gpu "
                  "h100-sxm-80gb, or none");
    check_refused(two, &a100_pcie, "device 0x2330 is h100-sxm-80gb, not a100-pcie-80gb");
    check_refused(no_device_at_all, &a100,
                  "f:11: a GPU of compute capability 9.0, but a100-sxm-40gb has 8.0");
    check_refused(mixed, &h100, "f:5: another GPU than that of line 11");
}
END_TEST

START_TEST(random_damage_never_crashes)
{
    check_damage(two, &h100, 72);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("import_xml");
    TCase *tcase = tcase_create("import_xml");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, links_to_switches_and_adapters_are_added_up);
    tcase_add_loop_test(tcase, a_gpu_has_the_whole_adapters_that_its_slot_takes, 0,
                        G_N_ELEMENTS(rails));
    tcase_add_loop_test(tcase, what_a_file_lacks_is_assumed_and_said, 0, G_N_ELEMENTS(lacking));
    tcase_add_test(tcase, nvlink_that_a_file_leaves_out_is_assumed_and_said);
    tcase_add_test(tcase, cards_have_the_pcie_switches_of_the_file);
    tcase_add_test(tcase, a_bridge_joins_the_gpu_that_it_names);
    tcase_add_test(tcase, many_nodes_of_xml_are_no_limit);
    tcase_add_loop_test(tcase, damaged_files_are_refused_with_their_line, 0, G_N_ELEMENTS(damaged));
    tcase_add_test(tcase, what_is_missing_is_asked_for);
    tcase_add_test(tcase, a_gpu_that_the_file_contradicts_is_refused);
    tcase_add_test(tcase, random_damage_never_crashes);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
