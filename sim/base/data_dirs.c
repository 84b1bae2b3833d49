#include "sim/base/data_dirs.h"

#include <string.h>

static char *existing(char *path)
{
    if (g_file_test(path, G_FILE_TEST_IS_DIR))
        return path;
    g_free(path);
    return NULL;
}

char *data_dir(const char *name)
{
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = g_path_get_dirname(program == NULL ? "." : program);
    char *found = existing(g_strdup(name));

    if (found == NULL)
        found = existing(g_build_filename(folder, "..", name, NULL));
    if (found == NULL)
        found = existing(g_build_filename(folder, "..", "share", "fsdp", name, NULL));
    return found == NULL ? g_strdup(name) : found;
}

static gint compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

GStrv data_names(const char *folder, const char *inside)
{
    GPtrArray *names = g_ptr_array_new();
    GDir *dir = g_dir_open(folder, 0, NULL);

    for (const char *entry; dir != NULL && (entry = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename(folder, entry, inside, NULL);

        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            g_ptr_array_add(names, g_strdup(entry));
    }
    if (dir != NULL)
        g_dir_close(dir);
    g_ptr_array_sort(names, compare_names);
    g_ptr_array_add(names, NULL);
    return (GStrv)g_ptr_array_free(names, FALSE);
}
