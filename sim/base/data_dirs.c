#include "sim/base/data_dirs.h"

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
