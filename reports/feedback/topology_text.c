#include "reports/feedback/topology_text.h"

#include "sim/base/data_dirs.h"
#include "sim/base/error.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Topology *parse(const char *text, const char *path, GError **error)
{
    g_autofree char *folder = data_dir("topologies");

    return topology_parse(text, path, folder, error);
}

gboolean topology_text_load(TopologyText *file, const char *path, GError **error)
{
    g_autoptr(GError) why = NULL;
    struct stat info;

    *file = (TopologyText){.path = realpath(path, NULL)};
    if (file->path == NULL)
        return fail(error, ERROR_INPUT,
                    "--calibrate %s: %s; a file is needed, such as fsdp-plan topology NAME or "
                    "fsdp-run calibrate -o make",
                    path, g_strerror(errno));
    if (stat(file->path, &info) != 0 || !S_ISREG(info.st_mode) || access(file->path, W_OK) != 0)
        return fail(error, ERROR_INPUT, "--calibrate %s: not a file that can be written", path);
    file->mode = info.st_mode & 07777;
    if (!g_file_get_contents(file->path, &file->text, NULL, &why))
        return fail(error, ERROR_INPUT, "%s", why->message);
    file->topology = parse(file->text, path, error);
    return file->topology != NULL;
}

void topology_text_clear(TopologyText *file)
{
    free(file->path);
    g_free(file->text);
    g_clear_pointer(&file->topology, topology_free);
}

/* The groups of calibration, as they are printed. */
static GKeyFile *printed(const Topology *topology)
{
    g_autofree char *text = topology_print(topology);
    GKeyFile *file = g_key_file_new();

    if (!g_key_file_load_from_data(file, text, (gsize)-1, G_KEY_FILE_NONE, NULL))
        g_assert_not_reached();
    return file;
}

/* Sets what is printed otherwise than it was before; whether that is anything. */
static gboolean set_group(GKeyFile *text, GKeyFile *before, GKeyFile *now, const char *group)
{
    g_auto(GStrv) keys = g_key_file_get_keys(now, group, NULL, NULL);
    gboolean changed = FALSE;

    for (guint i = 0; keys[i] != NULL; i++) {
        g_autofree char *old = g_key_file_get_value(before, group, keys[i], NULL);
        g_autofree char *new = g_key_file_get_value(now, group, keys[i], NULL);

        if (g_strcmp0(old, new) == 0)
            continue;
        g_key_file_set_value(text, group, keys[i], new);
        changed = TRUE;
    }
    return changed;
}

gboolean topology_text_save(const TopologyText *file, GError **error)
{
    g_autoptr(Topology) was = parse(file->text, file->path, error);
    g_autoptr(GKeyFile) text = g_key_file_new();
    g_autoptr(GError) why = NULL;
    gboolean differs = FALSE;

    if (was == NULL)
        return FALSE;
    g_autoptr(GKeyFile) before = printed(was);
    g_autoptr(GKeyFile) now = printed(file->topology);
    g_auto(GStrv) groups = g_key_file_get_groups(now, NULL);
    if (!g_key_file_load_from_data(text, file->text, (gsize)-1, G_KEY_FILE_KEEP_COMMENTS, &why))
        return fail(error, ERROR_INPUT, "%s: %s", file->path, why->message);
    for (guint g = 0; groups[g] != NULL; g++)
        if (g_str_has_prefix(groups[g], "measured "))
            differs |= set_group(text, before, now, groups[g]);
    if (!differs)
        return TRUE;
    g_autofree char *changed = g_key_file_to_data(text, NULL, NULL);
    g_autoptr(Topology) again = parse(changed, file->path, error);
    if (again == NULL)
        return FALSE;
    if (!g_file_set_contents_full(file->path, changed, -1, G_FILE_SET_CONTENTS_CONSISTENT,
                                  (int)file->mode, &why))
        return fail(error, ERROR_INPUT, "%s", why->message);
    return TRUE;
}
