/* Memory that ranks of one machine share: windows of MPI_Win_allocate_shared, and the control
 * window.  Open MPI (4.1) unlinks the file behind a window once all have attached. */
#include "exec/comm/comm_mpi.h"
#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *page_align(char *at)
{
    return at + (COMM_PAGE - (guintptr)at % COMM_PAGE) % COMM_PAGE;
}

/* MPI would take private memory, neither aligned nor zeroed, for a rank alone. */
static gboolean open_alone(CommWindow *window, gsize bytes, GError **error)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return fail(error, ERROR_RUNTIME, "%" G_GSIZE_FORMAT " bytes of memory: %s", bytes,
                    g_strerror(errno));
    window->peer[0] = memory;
    window->bytes[0] = bytes;
    return TRUE;
}

static gboolean allocate(CommWindow *window, MPI_Comm comm, gsize bytes, GError **error)
{
    MPI_Info info;
    void *base = NULL;

    if (!comm_mpi_ok(MPI_Info_create(&info), "MPI_Info_create", error))
        return FALSE;
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    int status = MPI_Win_allocate_shared((MPI_Aint)bytes, 1, info, comm, &base, &window->win);
    MPI_Info_free(&info);
    if (status == MPI_SUCCESS)
        return TRUE;
    window->win = MPI_WIN_NULL;
    g_autofree char *what = g_strdup_printf(
        "%" G_GSIZE_FORMAT " bytes of shared memory (MPI_Win_allocate_shared)", bytes);
    return comm_mpi_ok(status, what, error);
}

gboolean comm_window_open(CommWindow *window, MPI_Comm comm, gsize bytes, GError **error)
{
    int num = 0, own = 0;

    MPI_Comm_size(comm, &num);
    MPI_Comm_rank(comm, &own);
    *window = (CommWindow){.peer = g_new0(char *, num),
                           .bytes = g_new0(gsize, num),
                           .num = (guint)num,
                           .own = (guint)own,
                           .win = MPI_WIN_NULL};
    bytes = (MAX(bytes, 1) + COMM_PAGE - 1) / COMM_PAGE * COMM_PAGE;
    if (num == 1)
        return open_alone(window, bytes, error);
    /* One page more: the parts start at a multiple of 8 only, the same one in all ranks. */
    if (!allocate(window, comm, bytes + COMM_PAGE, error))
        return FALSE;
    for (int i = 0; i < num; i++) {
        MPI_Aint size = 0;
        int unit = 0;
        void *base = NULL;

        if (!comm_mpi_ok(MPI_Win_shared_query(window->win, i, &size, &unit, &base),
                         "MPI_Win_shared_query", error))
            return FALSE;
        window->peer[i] = page_align(base);
        window->bytes[i] = (gsize)size - COMM_PAGE;
    }
    return TRUE;
}

void comm_window_drop(CommWindow *window)
{
    g_clear_pointer(&window->peer, g_free);
    g_clear_pointer(&window->bytes, g_free);
}

void comm_window_close(CommWindow *window)
{
    if (window->win != MPI_WIN_NULL)
        MPI_Win_free(&window->win);
    else if (window->peer[0])
        munmap(window->peer[0], window->bytes[0]);
    comm_window_drop(window);
}

/* Pages of [at, at + bytes) that this process has mapped; 0 where the kernel does not tell. */
static guint64 present_pages(int pagemap, const char *at, gsize bytes)
{
    const guint64 present = 1ULL << 63;
    guint64 entries[512], pages = 0;
    gsize num = bytes / COMM_PAGE;
    gsize first = (guintptr)at / COMM_PAGE;

    for (gsize done = 0; done < num;) {
        gsize want = MIN(num - done, G_N_ELEMENTS(entries));
        gssize got = pread(pagemap, entries, want * sizeof *entries,
                           (off_t)((first + done) * sizeof *entries));
        if (got < (gssize)sizeof *entries)
            break;
        gsize read_entries = (gsize)got / sizeof *entries;
        for (gsize i = 0; i < read_entries; i++)
            pages += entries[i] & present ? 1 : 0;
        done += read_entries;
    }
    return pages;
}

guint64 comm_window_foreign_bytes(const CommWindow *window)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    guint64 pages = 0;

    if (pagemap < 0)
        return 0;
    for (guint i = 0; i < window->num; i++)
        if (i != window->own)
            pages += present_pages(pagemap, window->peer[i], window->bytes[i]);
    close(pagemap);
    return pages * COMM_PAGE;
}

/* A rank's part of the control window: its MpiComm, its staging memory, and for the first rank the
 * board. */
enum { CONTROL_STAGING = (sizeof(MpiComm) + 63) / 64 * 64 };
enum { CONTROL_BOARD = CONTROL_STAGING + COMM_STAGING_BYTES };

gboolean comm_control_open(MPI_Comm machine, CommWindow *control, GError **error)
{
    return comm_window_open(control, machine, CONTROL_BOARD + sizeof(CommBoard), error);
}

CommBoard *comm_control_board(const CommWindow *control)
{
    return (CommBoard *)(void *)(control->peer[0] + CONTROL_BOARD);
}

Comm *comm_control_first(const MpiComm *comm)
{
    return (Comm *)(void *)comm->control.peer[0];
}

char *comm_control_staging(const MpiComm *comm, guint machine_position)
{
    return comm->control.peer[machine_position] + CONTROL_STAGING;
}

/* Names of Open MPI's files that this process has mapped: the "vader" (4.x) and "sm" (5.x) ways of
 * moving messages within a machine. */
static GPtrArray *mapped_segments(void)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *maps = NULL;

    if (!g_file_get_contents("/proc/self/maps", &maps, NULL, NULL))
        return names;
    g_auto(GStrv) lines = g_strsplit(maps, "\n", -1);
    for (guint i = 0; lines[i]; i++) {
        const char *path = strchr(lines[i], '/');

        if (path && (strstr(path, "/vader_segment.") || strstr(path, "/sm_segment.")) &&
            g_file_test(path, G_FILE_TEST_EXISTS))
            g_ptr_array_add(names, g_strdup(path));
    }
    return names;
}

static gboolean connect_all(MpiComm *comm, GError **error)
{
    guint num = comm->control.num, own = comm->control.own;

    for (guint i = 0; i < num; i++) {
        char out = 0, in = 0;
        CommMessage send = {&out, 1, (own + i) % num, 0, TRUE};
        CommMessage receive = {&in, 1, (own + num - i) % num, 0, FALSE};

        if (!comm_post(comm, comm->machine, &receive, error) ||
            !comm_post(comm, comm->machine, &send, error) || !comm_complete(comm, error))
            return FALSE;
    }
    return TRUE;
}

gboolean comm_segments_unlink(MpiComm *comm, GError **error)
{
    if (!connect_all(comm, error) || !comm_mpi_ok(MPI_Barrier(comm->machine), "MPI_Barrier", error))
        return FALSE;
    comm->segments = g_ptr_array_new_with_free_func(g_free);
    if (comm->control.own != 0)
        return TRUE;
    g_ptr_array_unref(comm->segments);
    comm->segments = mapped_segments();
    for (guint i = 0; i < comm->segments->len; i++)
        unlink(g_ptr_array_index(comm->segments, i));
    return TRUE;
}

void comm_segments_restore(MpiComm *comm)
{
    for (guint i = 0; i < comm->segments->len; i++) {
        int file = open(g_ptr_array_index(comm->segments, i), O_CREAT | O_EXCL | O_WRONLY, 0600);

        if (file >= 0)
            close(file);
    }
    MPI_Barrier(comm->machine);
}
