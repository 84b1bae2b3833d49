#include "sim/import/import_kinds.h"
#include "sim/import/import_node.h"
#include "sim/import/import_rates.h"

#include <string.h>

enum { MAX_GPUS = 256 };

/* Of an adapter whose speed is missing or below 1, in Mb/s: what NCCL takes then (graph/topo.cc,
 * ncclTopoAddNet). */
enum { UNKNOWN_SPEED = 10000 };

/* <nvlink target= count= tclass=> inside a <gpu>. */
typedef struct {
    char *target; /* PCI address */
    gboolean to_switch, to_cpu;
    guint count, line;
} Nvlink;

typedef struct {
    char *busid;
    char *bridge; /* address of the PCIe switch above, or NULL */
    char *device; /* PCI device id, or NULL */
    guint dev;    /* of <gpu dev=>; G_MAXUINT where there is none */
    guint sm;     /* of <gpu sm=>; 0 where there is none */
    guint line;
    GArray *nvlinks; /* Nvlink */
} XmlGpu;

/* <pci> elements that are open: a GPU's, an adapter's or a switch's. */
typedef struct {
    char *busid; /* NULL: the file has none */
    char *class, *device;
    guint line;
    gint gpu; /* index in Xml.gpus, -1 = none */
} Pci;

typedef struct {
    const ImportText *text;
    GMarkupParseContext *context;
    GArray *open; /* Pci */
    GArray *gpus; /* XmlGpu */
    guint nics;
    double nic_bytes_per_s, rail_bytes_per_s;
    guint unknown_speeds; /* adapters without one */
    char *host;           /* of <cpu host_hash=>; NULL: none yet */
    guint host_line;
    guint depth;
} Xml;

static void clear_nvlink(gpointer data)
{
    g_free(((Nvlink *)data)->target);
}

static void clear_gpu(gpointer data)
{
    XmlGpu *gpu = data;

    g_free(gpu->busid);
    g_free(gpu->bridge);
    g_free(gpu->device);
    g_array_unref(gpu->nvlinks);
}

static void clear_pci(gpointer data)
{
    Pci *pci = data;

    g_free(pci->busid);
    g_free(pci->class);
    g_free(pci->device);
}

static GArray *array_of(guint size, GDestroyNotify clear)
{
    GArray *array = g_array_new(FALSE, FALSE, size);

    g_array_set_clear_func(array, clear);
    return array;
}

/* ---- elements ---- */

/* From 0.  At the end of a line GMarkup counts the next one already, and its character 1. */
static guint line_of(const Xml *xml)
{
    gint line, character;

    g_markup_parse_context_get_position(xml->context, &line, &character);
    return (guint)MAX(line - 1 - (character == 1), 0);
}

/* NULL where the element lacks it. */
static const char *attribute(const char *key, const char **names, const char **values)
{
    for (guint i = 0; names[i] != NULL; i++) {
        if (g_str_equal(names[i], key))
            return values[i];
    }
    return NULL;
}

static gboolean read_count(const Xml *xml, const char *what, const char *value, guint max,
                           guint *count, GError **error)
{
    guint64 number = 0;

    if (value != NULL && g_ascii_string_to_unsigned(value, 10, 0, max, &number, NULL)) {
        *count = (guint)number;
        return TRUE;
    }
    g_autofree char *shown = import_shown(value != NULL ? value : "");

    return import_refuse(xml->text, line_of(xml), error, "%s=\"%s\"; allowed: an integer up to %u",
                         what, shown, max);
}

static gboolean add_gpu(Xml *xml, Pci *pci, GError **error)
{
    const guint parents = xml->open->len - 1;
    const char *bridge = parents > 0 ? g_array_index(xml->open, Pci, parents - 1).busid : NULL;

    if (pci->gpu >= 0)
        return TRUE;
    if (pci->busid == NULL)
        return import_refuse(xml->text, pci->line, error,
                             "<pci> of a GPU without busid; allowed: its PCI address");
    if (xml->gpus->len == MAX_GPUS)
        return import_refuse(xml->text, pci->line, error, "more than %d GPUs", MAX_GPUS);
    for (guint i = 0; i < xml->gpus->len; i++) {
        const XmlGpu *other = &g_array_index(xml->gpus, XmlGpu, i);

        if (g_ascii_strcasecmp(other->busid, pci->busid) == 0)
            return import_refuse(xml->text, pci->line, error,
                                 "the GPU %s is already in line %u; allowed: once", pci->busid,
                                 other->line + 1);
    }
    const XmlGpu gpu = {
        .busid = g_strdup(pci->busid),
        .bridge = g_strdup(bridge),
        .device = g_strdup(pci->device),
        .dev = G_MAXUINT,
        .line = pci->line,
        .nvlinks = array_of(sizeof(Nvlink), clear_nvlink),
    };
    pci->gpu = (gint)xml->gpus->len;
    g_array_append_val(xml->gpus, gpu);
    return TRUE;
}

static gboolean open_pci(Xml *xml, const char **names, const char **values, GError **error)
{
    const char *busid = attribute("busid", names, values);
    const char *class = attribute("class", names, values);
    g_autofree char *shown = import_shown(busid != NULL ? busid : "");

    /* missing: a device that is none of PCI's, or that nobody looked up; only GPUs need it */
    if (busid != NULL && (*busid == '\0' || !g_str_equal(busid, shown)))
        return import_refuse(xml->text, line_of(xml), error,
                             "<pci busid=\"%s\">; allowed: a PCI address", shown);
    const Pci pci = {
        .busid = g_strdup(busid),
        .class = g_strdup(class != NULL ? class : ""),
        .device = g_strdup(attribute("device", names, values)),
        .line = line_of(xml),
        .gpu = -1,
    };

    g_array_append_val(xml->open, pci);
    xml->nics += g_str_has_prefix(pci.class, "0x0200") || g_str_has_prefix(pci.class, "0x0207");
    if (g_str_has_prefix(pci.class, "0x0302") || g_str_has_prefix(pci.class, "0x0300"))
        return add_gpu(xml, &g_array_index(xml->open, Pci, xml->open->len - 1), error);
    return TRUE;
}

static gboolean open_gpu(Xml *xml, const char **names, const char **values, GError **error)
{
    const char *dev = attribute("dev", names, values);
    const char *sm = attribute("sm", names, values);

    if (xml->open->len == 0)
        return import_refuse(xml->text, line_of(xml), error, "<gpu> outside <pci>");
    Pci *pci = &g_array_index(xml->open, Pci, xml->open->len - 1);

    if (!add_gpu(xml, pci, error))
        return FALSE;
    XmlGpu *gpu = &g_array_index(xml->gpus, XmlGpu, pci->gpu);

    return (dev == NULL || read_count(xml, "<gpu> dev", dev, MAX_GPUS - 1, &gpu->dev, error)) &&
           (sm == NULL || read_count(xml, "<gpu> sm", sm, 1000, &gpu->sm, error));
}

static gboolean open_nvlink(Xml *xml, const char **names, const char **values, GError **error)
{
    const char *target = attribute("target", names, values);
    const char *class = attribute("tclass", names, values);
    const gint gpu =
        xml->open->len > 0 ? g_array_index(xml->open, Pci, xml->open->len - 1).gpu : -1;
    Nvlink link = {.line = line_of(xml)};

    if (gpu < 0)
        return import_refuse(xml->text, link.line, error, "<nvlink> outside <gpu>");
    if (!read_count(xml, "<nvlink> count", attribute("count", names, values), G_MAXUINT8,
                    &link.count, error))
        return FALSE;
    link.target = g_strdup(target != NULL ? target : "");
    link.to_cpu = g_strcmp0(class, "0x068001") == 0;
    link.to_switch = class != NULL && g_str_has_prefix(class, "0x0680") && !link.to_cpu;
    g_array_append_val(g_array_index(xml->gpus, XmlGpu, gpu).nvlinks, link);
    return TRUE;
}

/* speed is in Mb/s, of one direction; some adapters say -1. */
static gboolean open_net(Xml *xml, const char **names, const char **values, GError **error)
{
    const char *given = attribute("speed", names, values);
    const gboolean unknown = given == NULL || g_str_equal(given, "-1") || g_str_equal(given, "0");
    guint speed = UNKNOWN_SPEED;

    if (!unknown && !read_count(xml, "<net> speed", given, 100000000, &speed, error))
        return FALSE;
    xml->unknown_speeds += unknown ? 1 : 0;
    xml->nic_bytes_per_s += speed * 1e6 / 8;
    xml->rail_bytes_per_s = MAX(xml->rail_bytes_per_s, speed * 1e6 / 8);
    return TRUE;
}

/* What NCCL writes of GPUs that NVLink joins over hosts has all of these, with the same addresses.
 */
static gboolean open_cpu(Xml *xml, const char **names, const char **values, GError **error)
{
    const char *host = attribute("host_hash", names, values);

    if (host == NULL || g_strcmp0(host, xml->host) == 0)
        return TRUE;
    if (xml->host != NULL)
        return import_refuse(xml->text, line_of(xml), error,
                             "another host than that of line %u; allowed: one node a file",
                             xml->host_line + 1);
    xml->host = g_strdup(host);
    xml->host_line = line_of(xml);
    return TRUE;
}

static void start_element(GMarkupParseContext *context, const char *element, const char **names,
                          const char **values, gpointer data, GError **error)
{
    Xml *xml = data;

    (void)context;
    if (xml->depth++ == 0 && !g_str_equal(element, "system")) {
        g_autofree char *shown = import_shown(element);

        import_refuse(xml->text, line_of(xml), error,
                      "<%s>; allowed: <system>, NCCL's description of a node "
                      "(NCCL_TOPO_DUMP_FILE%s)",
                      shown,
                      g_str_equal(element, "graphs") ? "; NCCL_GRAPH_DUMP_FILE is another" : "");
        return;
    }
    gboolean done = TRUE;

    if (g_str_equal(element, "pci"))
        done = open_pci(xml, names, values, error);
    else if (g_str_equal(element, "gpu"))
        done = open_gpu(xml, names, values, error);
    else if (g_str_equal(element, "nvlink"))
        done = open_nvlink(xml, names, values, error);
    else if (g_str_equal(element, "net"))
        done = open_net(xml, names, values, error);
    else if (g_str_equal(element, "cpu"))
        done = open_cpu(xml, names, values, error);
    g_assert(done || error == NULL || *error != NULL);
}

static void end_element(GMarkupParseContext *context, const char *element, gpointer data,
                        GError **error)
{
    Xml *xml = data;

    (void)context;
    (void)error;
    xml->depth--;
    if (g_str_equal(element, "pci"))
        g_array_set_size(xml->open, xml->open->len - 1);
}

static const GMarkupParser parser = {.start_element = start_element, .end_element = end_element};

static gboolean parse(Xml *xml, const char *text, GError **error)
{
    g_autoptr(GMarkupParseContext) context =
        g_markup_parse_context_new(&parser, G_MARKUP_DEFAULT_FLAGS, xml, NULL);
    g_autoptr(GError) why = NULL;

    xml->context = context;
    if (g_markup_parse_context_parse(context, text, (gssize)strlen(text), &why) &&
        g_markup_parse_context_end_parse(context, &why))
        return TRUE;
    if (why->domain != G_MARKUP_ERROR) {
        g_propagate_error(error, g_steal_pointer(&why));
        return FALSE;
    }
    g_autofree char *shown = g_utf8_make_valid(why->message, -1);
    g_strdelimit(shown, "\n\r\t", ' ');

    return import_refuse(xml->text, line_of(xml), error, "not whole XML: %s", shown);
}

/* ---- the node ---- */

static gint by_dev_and_address(gconstpointer a, gconstpointer b)
{
    const XmlGpu *first = a, *second = b;

    if (first->dev != second->dev)
        return first->dev < second->dev ? -1 : 1;
    return g_ascii_strcasecmp(first->busid, second->busid);
}

static gint find_gpu(const Xml *xml, const char *busid)
{
    for (guint i = 0; i < xml->gpus->len; i++) {
        if (g_ascii_strcasecmp(g_array_index(xml->gpus, XmlGpu, i).busid, busid) == 0)
            return (gint)i;
    }
    return -1;
}

/* Fills the row of @gpu with links to GPUs; *switched counts those to switches. */
static gboolean read_nvlinks(const Xml *xml, guint gpu, ImportNode *node, guint *switched,
                             GError **error)
{
    const GArray *nvlinks = g_array_index(xml->gpus, XmlGpu, gpu).nvlinks;

    for (guint i = 0; i < nvlinks->len; i++) {
        const Nvlink *link = &g_array_index(nvlinks, Nvlink, i);
        const gint target = find_gpu(xml, link->target);
        g_autofree char *shown = import_shown(link->target);

        if (link->to_cpu)
            continue;
        if (link->to_switch) {
            *switched += link->count;
            continue;
        }
        if (target < 0)
            return import_refuse(xml->text, link->line, error,
                                 "<nvlink target=\"%s\">; allowed: the address of another GPU",
                                 shown);
        if ((guint)target == gpu)
            return import_refuse(xml->text, link->line, error,
                                 "<nvlink target=\"%s\"> is the GPU itself; allowed: another GPU",
                                 shown);
        node->nvlinks[gpu * node->gpus + (guint)target] += link->count;
    }
    node->lists_nvlink |= nvlinks->len > 0;
    return TRUE;
}

static gboolean fill_node(const Xml *xml, ImportNode *node, GError **error)
{
    const guint gpus = xml->gpus->len;
    g_autofree guint *switched = g_new0(guint, gpus);

    for (guint a = 0; a < gpus; a++) {
        if (!read_nvlinks(xml, a, node, &switched[a], error))
            return FALSE;
    }
    for (guint a = 0; a < gpus; a++) {
        for (guint b = 0; b < gpus; b++) {
            const char *bridge = g_array_index(xml->gpus, XmlGpu, a).bridge;
            const char *other = g_array_index(xml->gpus, XmlGpu, b).bridge;

            if (a == b)
                continue;
            node->nvlinks[a * gpus + b] += MIN(switched[a], switched[b]);
            node->shares_switch[a * gpus + b] =
                bridge != NULL && other != NULL && g_ascii_strcasecmp(bridge, other) == 0;
        }
    }
    return TRUE;
}

/* @gpu against what the file itself says of its GPUs, where it does.  Sizes of memory may differ:
 * clouds ship one file for both. */
static gboolean check_given(const Xml *xml, const char *gpu, const char *found, GError **error)
{
    const XmlGpu *first = &g_array_index(xml->gpus, XmlGpu, 0);
    const ImportRates *given = import_rates(gpu);

    if (given == NULL) /* refused later, with those that are known */
        return TRUE;
    if (found != NULL && given != import_rates(found))
        return import_refuse(xml->text, first->line, error,
                             "device %s is %s, not %s; allowed: --gpu %s, or none", first->device,
                             found, gpu, found);
    if (first->sm != 0 && first->sm != given->sm)
        return import_refuse(xml->text, first->line, error,
                             "a GPU of compute capability %u.%u, but %s has %u.%u; allowed: the "
                             "--gpu of this node",
                             first->sm / 10, first->sm % 10, gpu, given->sm / 10, given->sm % 10);
    return TRUE;
}

/* @gpu, or what the PCI device ids say; NULL and @error where neither does. */
static const char *gpu_name(const Xml *xml, const char *gpu, GError **error)
{
    const XmlGpu *first = &g_array_index(xml->gpus, XmlGpu, 0);
    const char *found = first->device != NULL ? import_gpu_of_device(first->device) : NULL;

    for (guint i = 1; i < xml->gpus->len; i++) {
        const XmlGpu *other = &g_array_index(xml->gpus, XmlGpu, i);

        if (g_strcmp0(other->device, first->device) != 0 || other->sm != first->sm) {
            import_refuse(xml->text, other->line, error,
                          "another GPU than that of line %u; " TOPOLOGY_MIXED_GPUS,
                          first->line + 1);
            return NULL;
        }
    }
    if (gpu == NULL && found == NULL)
        import_refuse(xml->text, first->line, error,
                      "the file does not say which GPUs these are; give --gpu NAME");
    if (gpu == NULL)
        return found;
    return check_given(xml, gpu, found, error) ? gpu : NULL;
}

static Topology *build(Xml *xml, const char *gpu, const char *topologies_dir, GError **error)
{
    if (xml->gpus->len == 0) {
        import_refuse(xml->text, 0, error,
                      "no GPU: the file leaves them for NCCL to find; allowed: one that NCCL wrote "
                      "(NCCL_TOPO_DUMP_FILE)");
        return NULL;
    }
    g_array_sort(xml->gpus, by_dev_and_address);

    const char *name = gpu_name(xml, gpu, error);
    g_auto(ImportNode) node;

    import_node_init(&node, xml->gpus->len);
    node.kind = "NCCL topology XML";
    node.line = g_array_index(xml->gpus, XmlGpu, 0).line;
    node.nics = xml->nics;
    node.nic_bytes_per_s = xml->nic_bytes_per_s;
    node.rail_bytes_per_s = xml->rail_bytes_per_s;
    node.lists_nvlink = FALSE;
    if (xml->unknown_speeds > 0)
        g_string_append_printf(node.assumed,
                               "; the speed of %u adapter%s is not in it: assumed, 10 Gb/s as NCCL "
                               "does",
                               xml->unknown_speeds, xml->unknown_speeds == 1 ? "" : "s");
    if (name == NULL || !fill_node(xml, &node, error))
        return NULL;
    return import_node_topology(&node, xml->text, name, topologies_dir, error);
}

Topology *import_xml(const char *xml_text, const ImportText *text, const char *gpu,
                     const char *topologies_dir, GError **error)
{
    Xml xml = {
        .text = text,
        .open = array_of(sizeof(Pci), clear_pci),
        .gpus = array_of(sizeof(XmlGpu), clear_gpu),
    };
    Topology *topology = NULL;

    if (parse(&xml, xml_text, error))
        topology = build(&xml, gpu, topologies_dir, error);
    g_array_unref(xml.open);
    g_array_unref(xml.gpus);
    g_free(xml.host);
    return topology;
}
