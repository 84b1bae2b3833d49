/* A rank's file of the nvme tier: bytes at any offset, no name, clear refusals. */
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#include "exec/run/storage.h"
#include "sim/base/error.h"
#include "tests/exec/fake_aio.h"
#include "tests/suite.h"

#include <glib/gstdio.h>
#include <string.h>

/* More than all requests hold, and no multiple of a block. */
enum { BYTES = REQUESTS_BYTES + (1 << 20) + 300 };

/* On a disk, unlike /tmp on some machines. */
static char *folder_new(void)
{
    char *folder = g_strdup("/var/tmp/fsdp-storage-XXXXXX");

    g_assert_nonnull(g_mkdtemp(folder));
    return folder;
}

static Storage *storage_new(const char *folder, Device *device)
{
    g_autoptr(GError) error = NULL;
    Storage *storage = storage_open(folder, BYTES, device, &error);

    g_assert_no_error(error);
    return storage;
}

static Device *cpu(void)
{
    g_autoptr(GError) error = NULL;
    Device *device = device_open(DEVICE_CPU, 1, &error);

    g_assert_no_error(error);
    return device;
}

/* Of any length to any offset, beside an image in memory; what is next to a copy stays. */
static void assert_copies_are_read_back(guint copies)
{
    static const guint64 longest[] = {1, 100, 4096, 10000, BYTES};
    g_autofree char *folder = folder_new();
    g_autoptr(Device) device = cpu();
    g_autoptr(Storage) storage = storage_new(folder, device);
    g_autofree guint8 *image = g_malloc0(BYTES), *got = g_malloc(BYTES);
    g_autoptr(GRand) random = g_rand_new_with_seed(1);
    g_autoptr(GError) error = NULL;

    for (guint i = 0; i < copies; i++) {
        const guint64 most = longest[i % G_N_ELEMENTS(longest)];
        const guint64 offset = (guint64)g_rand_int_range(random, 0, BYTES);
        const guint64 bytes =
            MIN((guint64)g_rand_int_range(random, 1, (gint)most + 1), BYTES - offset);

        memset(image + offset, (gint)i + 1, bytes);
        const StorageCopy out = {
            .to = storage_base(storage) + offset, .from = image + offset, .bytes = bytes};
        ck_assert(storage_copy(storage, &out, &error));
    }
    storage_copy_host(storage, got, storage_base(storage), BYTES);
    ck_assert(storage_check(storage, &error));
    ck_assert_int_eq(memcmp(got, image, BYTES), 0);
    g_rmdir(folder);
}

START_TEST(copies_of_any_length_to_any_offset_are_read_back)
{
    fake_aio = (FakeAio){0};
    assert_copies_are_read_back(60);
    ck_assert_uint_eq(fake_aio.most_flight, NUM_REQUESTS);
    ck_assert_uint_eq(fake_aio.most_bytes, REQUEST_BYTES);
    ck_assert_uint_eq(fake_aio.flight, 0);
}
END_TEST

START_TEST(a_disk_that_does_requests_in_part_and_a_full_kernel_cost_only_time)
{
    fake_aio = (FakeAio){.again = 3, .interrupted = 5, .parts = TRUE};
    assert_copies_are_read_back(20);
    ck_assert_uint_eq(fake_aio.again + fake_aio.interrupted, 0);
    ck_assert_uint_eq(fake_aio.flight, 0);
}
END_TEST

/* The fourth of a copy, with others in flight; then the file is as good as before. */
static void assert_copy_fails(gboolean out, int why, const char *says)
{
    g_autofree char *folder = folder_new();
    g_autoptr(Device) device = cpu();
    g_autoptr(Storage) storage = storage_new(folder, device);
    g_autofree guint8 *memory = g_malloc0(BYTES);
    guint8 *file = storage_base(storage);
    g_autofree char *where = g_strdup_printf("%s %d bytes at %d of this rank's file in %s: %s",
                                             out ? "writing" : "reading", REQUEST_BYTES,
                                             3 * REQUEST_BYTES, folder, says);
    g_autoptr(GError) error = NULL;

    const StorageCopy copy = {
        .to = out ? file : memory, .from = out ? memory : file, .bytes = REQUESTS_BYTES};

    fake_aio = (FakeAio){.fails = 4, .why = why};
    ck_assert(!storage_copy(storage, &copy, &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_RUNTIME));
    ck_assert_msg(strstr(error->message, where) != NULL, "%s", error->message);
    ck_assert_uint_eq(fake_aio.flight, 0);
    fake_aio = (FakeAio){0};
    ck_assert(storage_copy(storage, &copy, NULL));
    g_rmdir(folder);
}

START_TEST(what_a_disk_refuses_is_said_with_its_place)
{
    assert_copy_fails(TRUE, -ENOSPC, "No space left on device");
    assert_copy_fails(TRUE, -EIO, "Input/output error");
    assert_copy_fails(FALSE, -EIO, "Input/output error");
    assert_copy_fails(FALSE, 0, "the file ends there");
    assert_copy_fails(TRUE, 0, "the disk takes no whole block");
}
END_TEST

/* So that nothing is left whatever ends the process. */
START_TEST(a_file_has_no_name_while_it_is_used)
{
    g_autofree char *folder = folder_new();
    g_autoptr(Device) device = cpu();
    g_autoptr(Storage) storage = storage_new(folder, device);

    ck_assert_uint_eq(storage_used_bytes(storage), 0); /* nothing is written yet */
    ck_assert_int_eq(g_rmdir(folder), 0);              /* it is empty */
    ck_assert(storage_holds(storage, storage_base(storage) + BYTES - 1));
    ck_assert(!storage_holds(storage, &storage));
}
END_TEST

static void assert_refused(const char *folder, guint64 bytes, ErrorCode code, const char *says)
{
    g_autoptr(Device) device = cpu();
    g_autoptr(GError) error = NULL;
    g_autoptr(Storage) storage = storage_open(folder, bytes, device, &error);

    ck_assert_ptr_null(storage);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, code));
    ck_assert_msg(strstr(error->message, says) != NULL, "%s", error->message);
}

START_TEST(what_is_no_disk_or_too_small_is_refused)
{
    assert_refused("/nowhere", 1, ERROR_INPUT, "--nvme /nowhere: no file can be made there");
    assert_refused("/var/tmp", G_GUINT64_CONSTANT(1) << 60, ERROR_RUNTIME,
                   "a rank needs 1152921504606846976 bytes, ");
    if (g_file_test("/dev/shm", G_FILE_TEST_IS_DIR))
        assert_refused("/dev/shm", 1, ERROR_INPUT, "tmpfs, which is memory");
}
END_TEST

START_TEST(a_kernel_without_asynchronous_io_is_refused_with_what_to_do)
{
    static const struct {
        int status;
        const char *says;
    } refusals[] = {
        {-ENOSYS, "io_setup: Function not implemented): it takes CONFIG_AIO and"},
        {-EPERM, "a seccomp profile that allows io_setup"},
        {-EAGAIN, "a rank needs 8: raise fs.aio-max-nr (now "},
        {-ENOMEM, "--nvme /var/tmp: io_setup: Cannot allocate memory"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(refusals); i++) {
        fake_aio = (FakeAio){.setup = refusals[i].status};
        assert_refused("/var/tmp", 1, ERROR_RUNTIME, refusals[i].says);
    }
    fake_aio = (FakeAio){0};
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("storage");
    TCase *tcase = tcase_create("file");

    tcase_add_test(tcase, copies_of_any_length_to_any_offset_are_read_back);
    tcase_add_test(tcase, a_disk_that_does_requests_in_part_and_a_full_kernel_cost_only_time);
    tcase_add_test(tcase, what_a_disk_refuses_is_said_with_its_place);
    tcase_add_test(tcase, a_file_has_no_name_while_it_is_used);
    tcase_add_test(tcase, what_is_no_disk_or_too_small_is_refused);
    tcase_add_test(tcase, a_kernel_without_asynchronous_io_is_refused_with_what_to_do);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
