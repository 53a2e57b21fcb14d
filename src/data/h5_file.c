// Opens files, owns the library's lock and settings, and turns the library's messages into errors.
#include "data/h5_file.h"

#include "base/crash.h"
#include "base/file.h"
#include "data/dataset.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
// Guarded by the lock:
static bool entered;
static int depth;
static struct dt_crash_note note = {
    .library = "libhdf5",
    .hint = "the file is probably damaged: check it with h5dump FILE >/dev/null, and copy it again "
            "from its source or create it again"};

// After a file failed to close (a full disk), the library's clean-up at exit would crash (1.10.8),
// so it is disabled. Everything of ours is closed without it.
void dt_h5_enter(const char *path)
{
    pthread_mutex_lock(&lock);
    if (depth++ == 0 && path) {
        note.path = path;
        dt_crash_enter(&note);
    }
    if (!entered)
        H5dont_atexit();
    entered = true;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void dt_h5_leave(void)
{
    dt_crash_advance();
    if (--depth == 0 && note.path) {
        dt_crash_leave();
        note.path = NULL;
    }
    pthread_mutex_unlock(&lock);
    dt_file_progress(); // opening 100,000 episodes takes minutes, while other ranks wait
}

const char *dt_dataset_hdf5_version(void)
{
    static _Thread_local char text[32];
    unsigned major = 0, minor = 0, release = 0;
    dt_h5_enter(NULL);
    H5get_libversion(&major, &minor, &release);
    dt_h5_leave();
    snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    return text;
}

struct reason {
    char text[256]; // the innermost description
    int error;      // errno in the description; 0: none
};

static herr_t note_reason(unsigned n, const H5E_error2_t *entry, void *context)
{
    struct reason *reason = context;
    const char *number = entry->desc ? strstr(entry->desc, "errno = ") : NULL;
    if (n == 0)
        snprintf(reason->text, sizeof reason->text, "%s", entry->desc ? entry->desc : "");
    if (number && reason->error == 0)
        reason->error = atoi(number + strlen("errno = "));
    return 0;
}

dt_status dt_h5_fail(dt_status code, const char *action, const char *path, const char *hint)
{
    struct reason reason = {"no reason given by HDF5", 0};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_reason, &reason);
    H5Eclear2(H5E_DEFAULT);
    if (reason.error)
        return DT_FAIL(dt_errno_status(reason.error), dt_errno_hint(reason.error),
                       "cannot %s %s: %s", action, path, strerror(reason.error));
    return DT_FAIL(code, hint, "cannot %s %s: %s", action, path, reason.text);
}

hid_t dt_h5_access(void)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_sec2(access);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    // Disable file locks, without which some NFS and Lustre mounts refuse to open files. Releases
    // without this property read an environment variable when the library starts.
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERS_MAJOR == 1 && H5_VERS_MINOR == 12 && H5_VERS_RELEASE == 0)
    H5Pset_file_locking(access, 0, 1);
#else
    setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
#endif
    return access;
}

dt_status dt_h5_open(const char *path, struct dt_h5_file *file)
{
    size_t address = 0, length = 0; // bytes of an address and of a length in this file
    hsize_t user_block = 0;
    void *handle;
    int fd;
    *file = (struct dt_h5_file){.path = path, .id = -1, .fd = -1};
    DT_TRY(dt_open_read(path, &fd, &file->bytes));
    close(fd);
    if (file->bytes == 0)
        return DT_FAIL(DT_USER, "remove the file, or create it again", "%s is empty (0 bytes)",
                       path);
    htri_t is_hdf5 = H5Fis_hdf5(path);
    if (is_hdf5 < 0)
        return dt_h5_fail(DT_USER, "open", path, NULL);
    if (is_hdf5 == 0)
        return DT_FAIL(DT_USER, "give HDF5 shards; dtrain pack makes them from text or raw tokens",
                       "%s is not an HDF5 file", path);
    hid_t access = dt_h5_access();
    file->id = H5Fopen(path, H5F_ACC_RDONLY, access);
    dt_status status = DT_OK;
    if (file->id < 0)
        status = dt_h5_fail(DT_USER, "open", path,
                            "the file is truncated or damaged: copy or create it again");
    else if (H5Fget_vfd_handle(file->id, access, &handle) < 0)
        status = dt_h5_fail(DT_MACHINE, "open", path, NULL);
    else
        status = dt_h5_trail_new(&file->trail);
    if (status == DT_OK) {
        memcpy(&file->fd, handle, sizeof file->fd);
        hid_t plist = H5Fget_create_plist(file->id);
        H5Pget_sizes(plist, &address, &length);
        H5Pget_userblock(plist, &user_block);
        H5Pclose(plist);
        file->base = address == 8 && length == 8 ? (int64_t)user_block : -1;
    } else {
        dt_h5_close(file);
    }
    H5Pclose(access);
    return status;
}

void dt_h5_close(struct dt_h5_file *file)
{
    if (file->id >= 0)
        H5Fclose(file->id);
    free(file->trail);
    file->trail = NULL;
    file->id = file->fd = -1;
}

dt_status dt_h5_finish(const char *path, hid_t file, dt_status status)
{
    if (file >= 0 && H5Fclose(file) < 0 && status == DT_OK)
        return dt_h5_fail(DT_MACHINE, "write", path, NULL);
    return status;
}

dt_status dt_h5_put_attribute(const char *path, hid_t id, const char *name, hid_t type, hsize_t n,
                              const void *values)
{
    dt_status status = DT_OK;
    hid_t space = n > 0 ? H5Screate_simple(1, &n, NULL) : H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(id, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute < 0 || H5Awrite(attribute, type, values) < 0)
        status = dt_h5_fail(DT_MACHINE, "write", path, NULL);
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return status;
}
